//! The workload with its parameters, and the metrics.

use super::fields::Reader;
use super::names::Names;
use super::programs::{self, Values};
use crate::diagnostic::{Diagnostic, meant};
use crate::grammar::{LOAD, METRIC, WORKLOAD};
use crate::metric::{Combine, Metric, MetricSource, SHOW_DEFAULT, is_json_path, is_statistic, pattern_fault};
use crate::model::{Parameter, ParameterValue, Program, Workload};
use crate::quantity::{BANDWIDTH, DURATION, Dimension, RATE, SHARE, SIZE};
use crate::template::BUILT_IN;
use crate::tree::{Entry, Kind, Node};

/// Kinds of quantities that a parameter can be, with how each is kept.
type Make = fn(u64) -> ParameterValue;
static KINDS: [(&Dimension, Make); 5] = [
    (&RATE, ParameterValue::RatePerDay),
    (&DURATION, ParameterValue::DurationNs),
    (&BANDWIDTH, ParameterValue::BandwidthBps),
    (&SIZE, ParameterValue::SizeBytes),
    (&SHARE, ParameterValue::SharePpm),
];

/// What `${name}` stands for. Faults of the rest of the workload are reported by [`read`].
pub(crate) fn parameters(r: &mut Reader, workload: &Entry, overrides: &[(String, String)]) -> Values {
    let mut values = Values { parameters: Vec::new(), warm_up: "0s".to_owned(), measure: String::new() };
    let Kind::Map(entries) = &workload.value.kind else { return values };
    for entry in entries {
        match (entry.key.as_str(), &entry.value.kind) {
            ("parameters", _) => values.parameters = list(r, &entry.value),
            ("warm_up", Kind::Scalar { text, .. }) => values.warm_up.clone_from(text),
            ("measure", Kind::Scalar { text, .. }) => values.measure.clone_from(text),
            _ => {}
        }
    }
    for (name, text) in overrides {
        set(r, &mut values.parameters, name, text);
    }
    values
}

fn list(r: &mut Reader, node: &Node) -> Vec<Parameter> {
    let mut out = Vec::new();
    for entry in r.map(node, "values") {
        r.check_name(&entry.key, entry.key_at);
        if let Some((name, about)) = BUILT_IN.iter().find(|(n, _)| *n == entry.key) {
            r.faults.add(entry.key_at, format!("'{name}' is no free name for a parameter: it is the {about}"));
        }
        let Some(text) = r.scalar(&entry.value, "a value such as 90/s or 7") else { continue };
        out.push(Parameter {
            name: entry.key.clone(),
            text: text.to_owned(),
            value: value_of(text),
            overridden: false,
            at: entry.key_at,
        });
    }
    out
}

fn value_of(text: &str) -> ParameterValue {
    if !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && let Ok(n) = text.parse()
    {
        return ParameterValue::Integer(n);
    }
    KINDS.iter().find_map(|(d, make)| d.parse(text).ok().map(make)).unwrap_or(ParameterValue::Text)
}

/// Applies one `-p name=text`. It must mean the same kind of thing as what the catalog has.
fn set(r: &mut Reader, parameters: &mut [Parameter], name: &str, text: &str) {
    let fault = |offset: usize, message: String, hint: Option<String>| Diagnostic {
        file: format!("-p {name}={text}"),
        line: 1,
        column: u32::try_from(offset + 1).unwrap_or(u32::MAX),
        message,
        hint,
    };
    let known: Vec<String> = parameters.iter().map(|p| p.name.clone()).collect();
    let Some(parameter) = parameters.iter_mut().find(|p| p.name == name) else {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let message = format!("the catalog has no parameter '{name}'");
        r.faults.push_elsewhere(fault("-p ".len(), message, Some(meant(name, &known))));
        return;
    };
    let value = value_of(text);
    let offset = "-p ".len() + name.chars().count() + 1;
    let same = std::mem::discriminant(&value) == std::mem::discriminant(&parameter.value);
    // A parameter that is free text takes anything.
    if !same && parameter.value != ParameterValue::Text {
        let kind = KINDS.iter().find(|(d, make)| d.parse(&parameter.text).is_ok_and(|v| make(v) == parameter.value));
        let (expected, hint) = match kind {
            Some((d, _)) => (d.name, Some(format!("accepted units: {}", d.accepted()))),
            None => ("a whole number", None),
        };
        let message = format!("'{text}' for '{name}', expected {expected} like the catalog's {}", parameter.text);
        r.faults.push_elsewhere(fault(offset, message, hint));
        return;
    }
    parameter.text = text.to_owned();
    parameter.value = if parameter.value == ParameterValue::Text { ParameterValue::Text } else { value };
    parameter.overridden = true;
}

pub(crate) fn read(r: &mut Reader, entry: &Entry, names: &Names, values: Values) -> Option<Workload> {
    let f = r.open(&entry.value, &WORKLOAD)?;
    let warm_up_ns = f.get("warm_up").and_then(|e| r.quantity(&e.value, &DURATION)).unwrap_or(0);
    let measure_ns = r.quantity_above_0(f.get("measure"), &DURATION);
    let load = r.open(&f.get("run")?.value, &LOAD)?;
    let on = load.get("on").map(|e| programs::on(r, &e.value, names)).unwrap_or_default();
    let command = programs::command(r, &load, "command", &values);
    Some(Workload { parameters: values.parameters, warm_up_ns, measure_ns, on, command })
}

pub(crate) fn metrics(
    r: &mut Reader,
    entry: &Entry,
    names: &Names,
    programs: &[Program],
    workload: &Workload,
) -> Vec<Metric> {
    let mut out = Vec::new();
    for entry in r.map(&entry.value, "metrics") {
        r.check_name(&entry.key, entry.key_at);
        if let Some(metric) = metric(r, entry, names, programs, workload) {
            out.push(metric);
        }
    }
    out
}

fn metric(r: &mut Reader, entry: &Entry, names: &Names, programs: &[Program], workload: &Workload) -> Option<Metric> {
    let f = r.open(&entry.value, &METRIC)?;
    let from = f.get("from").map(|e| programs::on(r, &e.value, names)).unwrap_or_default();
    for node in &from {
        if !workload.on.contains(node) && !programs.iter().any(|p| p.on.contains(node)) {
            let at = f.get("from").map_or(f.at, |e| e.value.at);
            r.faults.add(at, format!("no program runs on node '{node}', expected one that reports '{}'", entry.key));
            break;
        }
    }
    let unit = f.get("unit").map(|e| r.text(&e.value)).unwrap_or_default();
    let source = if let Some(e) = f.get("json") {
        let path = r.text(&e.value);
        if !path.is_empty() && !is_json_path(&path) {
            let message = format!("'{path}' is no path into JSON, expected one such as $.rate or $.a.b[0]");
            r.faults.add(e.value.at, message);
        }
        MetricSource::Json(path)
    } else if let Some(e) = f.get("regex") {
        let pattern = r.text(&e.value);
        if let Some(fault) = pattern_fault(&pattern).filter(|_| !pattern.is_empty()) {
            r.faults.add(e.value.at, fault);
        }
        MetricSource::Regex(pattern)
    } else {
        let e = f.get("samples")?;
        MetricSource::Samples(samples(r, e, &unit))
    };
    let pooled = matches!(source, MetricSource::Samples(_));
    let combine = f.get("combine").and_then(|e| combine(r, e));
    match f.get("combine") {
        Some(e) if pooled => {
            let message = "'combine' with samples, which are pooled: percentiles are never combined";
            r.faults.add_with_hint(e.key_at, message, "leave 'combine' out");
        }
        None if !pooled && from.len() > 1 => {
            let message = format!(
                "{} nodes report '{}', expected 'combine' to say how they become one number",
                from.len(),
                entry.key
            );
            r.faults.add_with_hint(entry.key_at, message, "known: sum, mean, max, min");
        }
        _ => {}
    }
    let show = match f.get("show") {
        Some(e) if !pooled => {
            r.faults.add_with_hint(
                e.key_at,
                "'show' with a single number, expected it with samples only",
                "leave 'show' out",
            );
            Vec::new()
        }
        Some(e) => show(r, e),
        None if pooled => SHOW_DEFAULT.map(str::to_owned).to_vec(),
        None => Vec::new(),
    };
    Some(Metric { name: entry.key.clone(), from, source, unit, combine, show, at: entry.key_at })
}

fn samples(r: &mut Reader, entry: &Entry, unit: &str) -> String {
    let file = r.text(&entry.value);
    let ending = format!("_{unit}.bin");
    if file.starts_with('/') || file.split('/').any(|p| p == "..") {
        let message = format!("'{file}', expected a path relative to the command's working directory, without '..'");
        r.faults.add(entry.value.at, message);
    } else if !file.is_empty() && !unit.is_empty() && !file.ends_with(&ending) {
        let message = format!("'{file}' does not say its unit, expected a name that ends in '{ending}'");
        r.faults.add(entry.value.at, message);
    }
    file
}

fn combine(r: &mut Reader, entry: &Entry) -> Option<Combine> {
    let text = r.text(&entry.value);
    let found = Combine::NAMES.iter().find(|(name, _)| *name == text).map(|(_, c)| *c);
    if found.is_none() && !text.is_empty() {
        let known = Combine::NAMES.map(|(name, _)| name);
        r.faults.add_with_hint(entry.value.at, format!("'{text}' is no way to combine numbers"), meant(&text, &known));
    }
    found
}

fn show(r: &mut Reader, entry: &Entry) -> Vec<String> {
    let mut out = Vec::new();
    for (text, at) in r.one_or_more(&entry.value, "mean, min, max or a percentile such as p99.9") {
        if !is_statistic(&text) {
            r.faults.add(
                at,
                format!("'{text}' is no figure of samples, expected mean, min, max or a percentile such as p99.9"),
            );
        }
        out.push(text);
    }
    out
}
