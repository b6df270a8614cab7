//! Graphs from files: GML and GraphML to vertices and edges, with the attributes of the Internet Topology Zoo
//! (`label`, `Latitude`, `Longitude`, `LinkSpeedRaw`) and of Shadow (`latency`, `packet_loss`, `host_bandwidth_up`,
//! `host_bandwidth_down`; in GraphML also `packetloss`, `bandwidthup`, `bandwidthdown`). Other attributes are skipped.

mod gml;
mod graphml;

use std::collections::BTreeMap;

use crate::diagnostic::Pos;
use crate::quantity::{DURATION, split_number};

/// Most vertices of a graph.
const VERTICES_MAX: usize = 10_000;
/// Most edges of a graph.
const EDGES_MAX: usize = 100_000;
/// Light in fibre: 200,000 km/s, two thirds of that in vacuum.
const NS_PER_KM: f64 = 5_000.0;
const EARTH_RADIUS_KM: f64 = 6_371.0;

/// A fault in the file: place, message, hint.
pub(crate) type Fault = (Pos, String, Option<String>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Graph {
    pub directed: bool,
    pub vertices: Vec<Vertex>,
    pub edges: Vec<Edge>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vertex {
    pub id: String,
    pub label: Option<String>,
    /// Latitude and longitude in degrees.
    pub place: Option<(f64, f64)>,
    pub up_bps: Option<u64>,
    pub down_bps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Edge {
    /// Positions in the graph's vertices.
    pub ends: (usize, usize),
    pub at: Pos,
    pub delay_ns: Option<u64>,
    pub bandwidth_bps: Option<u64>,
    pub loss_ppm: u32,
}

/// An element as either format gives it: attributes by name, each with its text and place.
#[derive(Debug, Default)]
struct Raw {
    at: Pos,
    attributes: BTreeMap<String, (String, Pos)>,
}

/// All elements of a file.
#[derive(Debug, Default)]
struct RawGraph {
    directed: bool,
    vertices: Vec<Raw>,
    edges: Vec<Raw>,
}

/// Reads a graph; the format is told from the file's name.
pub(crate) fn read(file: &str, text: &str) -> Result<Graph, Fault> {
    let start = Pos { line: 1, column: 1 };
    let raw = match file.rsplit_once('.').map(|(_, end)| end) {
        Some("gml") => gml::read(text)?,
        Some("graphml" | "xml") => graphml::read(text)?,
        _ => return Err((start, "expected a file named .gml, .graphml or .xml".to_owned(), None)),
    };
    let too_many =
        |what: &str, count: usize, max: usize| (start, format!("{count} {what}, expected at most {max}"), None);
    if raw.vertices.is_empty() {
        return Err((start, "a graph without nodes".to_owned(), None));
    }
    if raw.vertices.len() > VERTICES_MAX {
        return Err(too_many("nodes", raw.vertices.len(), VERTICES_MAX));
    }
    if raw.edges.len() > EDGES_MAX {
        return Err(too_many("edges", raw.edges.len(), EDGES_MAX));
    }
    let mut ids = BTreeMap::new();
    let mut vertices = Vec::new();
    for (i, v) in raw.vertices.iter().enumerate() {
        let (id, at) = v.required("id", "a node")?;
        if ids.insert(id.to_owned(), i).is_some() {
            return Err((at, format!("a second node with the id '{id}'"), None));
        }
        vertices.push(vertex(id, v)?);
    }
    let edges = raw.edges.iter().map(|e| edge(e, &ids, &vertices)).collect::<Result<_, _>>()?;
    Ok(Graph { directed: raw.directed, vertices, edges })
}

fn vertex(id: &str, v: &Raw) -> Result<Vertex, Fault> {
    let place = match (v.number("Latitude", -90.0, 90.0)?, v.number("Longitude", -180.0, 180.0)?) {
        (Some(latitude), Some(longitude)) => Some((latitude, longitude)),
        _ => None,
    };
    // Shadow before its second version: KiB per second.
    let kib = |key| Ok(v.number(key, 1.0, 1e12)?.map(|kib| (kib * 8192.0) as u64));
    let up_bps = v.with("host_bandwidth_up", bandwidth)?;
    let down_bps = v.with("host_bandwidth_down", bandwidth)?;
    Ok(Vertex {
        id: id.to_owned(),
        label: v.attributes.get("label").map(|(label, _)| label.clone()),
        place,
        up_bps: if up_bps.is_some() { up_bps } else { kib("bandwidthup")? },
        down_bps: if down_bps.is_some() { down_bps } else { kib("bandwidthdown")? },
    })
}

fn edge(e: &Raw, ids: &BTreeMap<String, usize>, vertices: &[Vertex]) -> Result<Edge, Fault> {
    let end = |key| {
        let (id, at) = e.required(key, "an edge")?;
        ids.get(id).copied().ok_or_else(|| (at, format!("an edge to a node '{id}' that does not exist"), None))
    };
    let ends = (end("source")?, end("target")?);
    let loss = match e.number("packet_loss", 0.0, 1.0)? {
        Some(loss) => Some((loss, "packet_loss")),
        None => e.number("packetloss", 0.0, 1.0)?.map(|loss| (loss, "packetloss")),
    };
    if let Some((loss, key)) = loss.filter(|(loss, _)| *loss >= 1.0) {
        return Err((e.attributes[key].1, format!("a loss of {loss}, expected below 1"), None));
    }
    let raw_speed = e.number("LinkSpeedRaw", 0.0, 1e15)?.filter(|bps| *bps >= 1.0);
    let delay_ns = match e.with("latency", latency)? {
        Some(ns) => Some(ns),
        None => {
            distance_km(&vertices[ends.0], &vertices[ends.1]).map(|km| (km * NS_PER_KM / 1000.0).round() as u64 * 1000)
        }
    };
    Ok(Edge {
        ends,
        at: e.at,
        delay_ns,
        bandwidth_bps: raw_speed.map(|bps| bps.round() as u64),
        loss_ppm: loss.map_or(0, |(loss, _)| (loss * 1e6).round() as u32),
    })
}

impl Raw {
    fn required(&self, key: &str, what: &str) -> Result<(&str, Pos), Fault> {
        match self.attributes.get(key) {
            Some((text, at)) => Ok((text, *at)),
            None => Err((self.at, format!("{what} without '{key}'"), None)),
        }
    }

    /// A number within bounds.
    fn number(&self, key: &str, min: f64, max: f64) -> Result<Option<f64>, Fault> {
        let Some((text, at)) = self.attributes.get(key) else { return Ok(None) };
        match text.trim().parse::<f64>() {
            Ok(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err((*at, format!("'{text}' for '{key}', expected a number from {min} to {max}"), None)),
        }
    }

    /// A value that its own reader understands.
    fn with(&self, key: &str, read: fn(&str) -> Result<u64, String>) -> Result<Option<u64>, Fault> {
        let Some((text, at)) = self.attributes.get(key) else { return Ok(None) };
        read(text).map(Some).map_err(|expected| (*at, format!("'{text}' for '{key}', expected {expected}"), None))
    }
}

/// `10 ms`; a number alone is milliseconds, as in Shadow's GraphML.
fn latency(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if let Ok(ms) = text.parse::<f64>() {
        let good = (0.0..=1e9).contains(&ms);
        return if good { Ok((ms * 1e6).round() as u64) } else { Err("0 to 10^9 milliseconds".to_owned()) };
    }
    let unit = text.replace(['\u{b5}', '\u{3bc}'], "u");
    DURATION.parse(&unit).map_err(|_| format!("a duration such as '10 ms' ({})", DURATION.accepted()))
}

/// `100 Mbit`, with or without `/s`.
fn bandwidth(text: &str) -> Result<u64, String> {
    let expected = || "a bandwidth such as '100 Mbit' (bit, Kbit, Mbit, Gbit, Tbit or Kibit to Tibit)".to_owned();
    let (number, rest) = split_number(text).ok_or_else(expected)?;
    let number = number.map_err(|_| expected())?;
    let factor: u64 = match rest.trim().trim_end_matches("/s") {
        "bit" => 1,
        "kbit" | "Kbit" => 1_000,
        "Mbit" => 1_000_000,
        "Gbit" => 1_000_000_000,
        "Tbit" => 1_000_000_000_000,
        "Kibit" => 1 << 10,
        "Mibit" => 1 << 20,
        "Gibit" => 1 << 30,
        "Tibit" => 1 << 40,
        _ => return Err(expected()),
    };
    let bps = u128::from(number.mantissa) * u128::from(factor) / 10u128.pow(number.digits);
    u64::try_from(bps).ok().filter(|bps| *bps > 0).ok_or_else(expected)
}

/// Along the great circle.
fn distance_km(a: &Vertex, b: &Vertex) -> Option<f64> {
    let ((lat_a, lon_a), (lat_b, lon_b)) = (a.place?, b.place?);
    let half = |from: f64, to: f64| ((to - from).to_radians() / 2.0).sin().powi(2);
    let h = half(lat_a, lat_b) + lat_a.to_radians().cos() * lat_b.to_radians().cos() * half(lon_a, lon_b);
    Some(2.0 * EARTH_RADIUS_KM * h.sqrt().min(1.0).asin())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_shadow_are_understood() {
        assert_eq!(latency("10 ms"), Ok(10_000_000));
        assert_eq!(latency("1.5"), Ok(1_500_000));
        assert_eq!(
            [latency("25 us"), latency("25 \u{b5}s"), latency("25 \u{3bc}s")],
            [Ok(25_000), Ok(25_000), Ok(25_000)]
        );
        assert!(latency("-1").is_err() && latency("NaN").is_err() && latency("ten").is_err());
        assert_eq!(
            [bandwidth("100 Mbit"), bandwidth("1.5Gbit/s"), bandwidth("81920 Kibit")],
            [Ok(100_000_000), Ok(1_500_000_000), Ok(83_886_080)]
        );
        assert!(bandwidth("100").is_err() && bandwidth("0 bit").is_err() && bandwidth("100 MB").is_err());
    }

    #[test]
    fn distances_are_those_of_the_globe() {
        let at = |latitude, longitude| Vertex {
            id: String::new(),
            label: None,
            place: Some((latitude, longitude)),
            up_bps: None,
            down_bps: None,
        };
        // London to New York: 5570 km.
        let km = distance_km(&at(51.5074, -0.1278), &at(40.7128, -74.0060)).unwrap();
        assert!((km - 5570.0).abs() < 5.0, "{km}");
        assert!((distance_km(&at(0.0, -179.5), &at(0.0, 179.5)).unwrap() - 111.2).abs() < 0.1);
        let half_way_round = distance_km(&at(90.0, 0.0), &at(-90.0, 0.0)).unwrap();
        assert!((half_way_round - 20_015.0).abs() < 1.0, "{half_way_round}");
    }
}
