//! Captures: frames of a NIC or pipe as pcapng, with virtual timestamps.
//!
//! The emulator's thread copies frames into a bounded channel and never waits. A thread per capture writes blocks and
//! sends them to the client in chunks, each with its length before it (4 bytes, little-endian); a length of 0 ends the
//! file, and one line of JSON with the counts follows. The client ends a capture by closing its sending half.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use diecast_core_experiment::NetworkNames;
use diecast_core_net::{NetSpec, PipeIx, VertexIx};
use diecast_core_plan::nics_of;
use diecast_core_vtime::VirtNs;
use diecast_host_net::{Capture, CapturePoint, CapturedFrame, Direction, EmulatorHandle, nic_device};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness};
use serde::{Deserialize, Serialize};

use crate::live::{Answer, send};

/// Bytes that are collected before they are sent on.
const CHUNK_BYTES: usize = 64 * 1024;
/// What has been collected is sent on after so long at the latest.
const FLUSH_EVERY: Duration = Duration::from_millis(50);
/// A client that takes nothing for so long is given up.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);
/// `if_tsresol`: timestamps count 10^-9 s.
const NANOSECONDS: u8 = 9;

/// What is captured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// `NODE` for its NIC, `FROM:TO` for a pipe.
    pub places: Vec<String>,
    /// Ends after so many frames.
    pub frames_max: Option<u64>,
    /// Ends after so much virtual time.
    pub v_span_ns: Option<u64>,
}

/// How a capture ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CaptureCounts {
    /// Frames in the file.
    pub frames: u64,
    /// Frames that the capture was too slow for.
    pub dropped: u64,
}

/// Starts captures of one lab.
pub struct Captures {
    net: NetSpec,
    pipes: Vec<(String, String)>,
    emulator: EmulatorHandle,
    realtime_offset_ns: i64,
}

/// A capture that has begun.
pub struct Started {
    capture: Capture,
    places: Vec<String>,
    realtime_offset_ns: i64,
    frames_max: u64,
    v_span_ns: u64,
}

impl Captures {
    pub fn new(net: &NetSpec, emulator: EmulatorHandle, realtime_offset_ns: i64) -> Captures {
        let name = |v: VertexIx| net.vertices[v.at()].name.clone();
        Captures {
            net: net.clone(),
            pipes: net.pipes.iter().map(|p| (name(p.from), name(p.to))).collect(),
            emulator,
            realtime_offset_ns,
        }
    }

    pub fn start(&self, request: &CaptureRequest, names: &NetworkNames) -> Result<Started, Answer> {
        let (mut points, mut places, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for word in &request.places {
            match self.points(word, names) {
                Some(found) => found.into_iter().for_each(|(point, place)| {
                    points.push(point);
                    places.push(place);
                }),
                None => faults.push(format!(
                    "{word}:1:1: no node, group or pipe '{word}', expected a node, or FROM:TO with both ends of a link"
                )),
            }
        }
        if !faults.is_empty() {
            return Err(Answer::Faults(faults));
        }
        let capture = self.emulator.capture(points).map_err(|e| Answer::Error(e.to_string()))?;
        Ok(Started {
            capture,
            places,
            realtime_offset_ns: self.realtime_offset_ns,
            frames_max: request.frames_max.unwrap_or(u64::MAX),
            v_span_ns: request.v_span_ns.unwrap_or(u64::MAX),
        })
    }

    fn points(&self, word: &str, names: &NetworkNames) -> Option<Vec<(CapturePoint, String)>> {
        let found: Vec<_> = match word.split_once(':') {
            Some((from, to)) => {
                let is = |(_, p): &(usize, &(String, String))| p.0 == from && p.1 == to;
                let pipe = |(ix, _)| (CapturePoint::Pipe(PipeIx(ix as u32)), word.to_owned());
                self.pipes.iter().enumerate().filter(is).map(pipe).collect()
            }
            None => {
                let nics = |name: &String| {
                    let nics = nics_of(&self.net, |n| n == name).into_iter().enumerate();
                    let of = format!(" of {name}");
                    nics.map(move |(i, ix)| (CapturePoint::Nic(ix), nic_device(i) + &of))
                };
                names.nodes(word)?.iter().flat_map(nics).collect()
            }
        };
        (!found.is_empty()).then_some(found)
    }
}

impl Started {
    /// Answers the client and goes on in a thread of its own.
    pub fn serve(self, mut client: UnixStream) {
        let spawned = client.try_clone().and_then(|mut copy| {
            copy.set_read_timeout(None)?;
            copy.set_write_timeout(Some(CLIENT_TIMEOUT))?;
            let ended = Arc::new(AtomicBool::new(false));
            let seen = ended.clone();
            let mut listening = copy.try_clone()?;
            std::thread::Builder::new().name("capture-end".into()).spawn(move || {
                let mut rest = [0; 64];
                while listening.read(&mut rest).is_ok_and(|n| n > 0) {}
                seen.store(true, Ordering::Release);
            })?;
            send(&mut copy, &Answer::Capturing { places: self.places.clone() });
            std::thread::Builder::new().name("capture".into()).spawn(move || {
                // A client that has gone away has ended the capture.
                let _ = self.stream(&mut copy, &ended);
                let _ = copy.shutdown(std::net::Shutdown::Both);
            })
        });
        if let Err(e) = spawned {
            send(&mut client, &Answer::Error(format!("starting the capture: {e}")));
        }
    }

    fn stream(&self, client: &mut UnixStream, ended: &AtomicBool) -> std::io::Result<()> {
        let mut chunks = Chunks { client, buffer: Vec::new() };
        let counts = self.write(&mut chunks, || ended.load(Ordering::Acquire))?;
        chunks.flush()?;
        chunks.client.write_all(&0u32.to_le_bytes())?;
        chunks.client.write_all(format!("{}\n", serde_json::to_string(&counts)?).as_bytes())
    }

    fn write(&self, out: &mut impl Write, ended: impl Fn() -> bool) -> std::io::Result<CaptureCounts> {
        let mut writer = writer(out, &self.places)?;
        let (mut frames, mut first) = (0, None);
        while frames < self.frames_max && !ended() {
            let captured = match self.capture.frames.recv_timeout(FLUSH_EVERY) {
                Ok(captured) => captured,
                Err(RecvTimeoutError::Timeout) => {
                    writer.get_mut().flush()?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let begin = *first.get_or_insert(captured.at);
            if captured.at.since(begin).ns() > self.v_span_ns {
                break;
            }
            write_frame(&mut writer, &captured, self.realtime_offset_ns)?;
            frames += 1;
        }
        Ok(CaptureCounts { frames, dropped: self.capture.dropped() })
    }
}

fn writer<W: Write>(out: W, places: &[String]) -> std::io::Result<PcapNgWriter<W>> {
    let program = format!("diecast {}", env!("CARGO_PKG_VERSION"));
    let options = vec![
        SectionHeaderOption::UserApplication(Cow::Owned(program)),
        SectionHeaderOption::Comment(Cow::Borrowed("timestamps are virtual: those of the nodes' CLOCK_REALTIME")),
    ];
    let section = SectionHeaderBlock { endianness: Endianness::Little, options, ..SectionHeaderBlock::default() };
    let mut writer = PcapNgWriter::with_section_header(out, section).map_err(std::io::Error::other)?;
    for place in places {
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(place)),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        writer.write_pcapng_block(block).map_err(std::io::Error::other)?;
    }
    Ok(writer)
}

/// The crate writes a timestamp's nanoseconds as they are, which is right for the resolution that [`writer`] states.
fn write_frame<W: Write>(
    writer: &mut PcapNgWriter<W>,
    captured: &CapturedFrame,
    realtime_offset_ns: i64,
) -> std::io::Result<()> {
    // epb_flags, bits 0 and 1: 1 is inbound, 2 is outbound.
    let flags = match captured.direction {
        Direction::Received => 1,
        Direction::Sent => 2,
    };
    let block = EnhancedPacketBlock {
        interface_id: captured.point as u32,
        timestamp: realtime(captured.at, realtime_offset_ns),
        original_len: captured.frame.len() as u32,
        data: Cow::Borrowed(&captured.frame),
        options: vec![EnhancedPacketOption::Flags(flags)],
    };
    writer.write_pcapng_block(block).map_err(std::io::Error::other)?;
    Ok(())
}

/// The nodes' CLOCK_REALTIME at a virtual instant.
fn realtime(at: VirtNs, offset_ns: i64) -> Duration {
    Duration::from_nanos(at.0.saturating_add_signed(offset_ns))
}

/// Sends what is written in chunks with their lengths.
struct Chunks<'a> {
    client: &'a mut UnixStream,
    buffer: Vec<u8>,
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if !self.buffer.is_empty() {
            self.client.write_all(&(self.buffer.len() as u32).to_le_bytes())?;
            self.client.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn a_file_says_what_was_seen_byte_for_byte() {
        let places = ["eth0 of a".to_owned(), "a:s".to_owned()];
        let mut file = Vec::new();
        let mut w = writer(&mut file, &places).unwrap();
        let frame = |point, at, direction| CapturedFrame { at: VirtNs(at), point, direction, frame: vec![7, 8, 9] };
        write_frame(&mut w, &frame(0, 5, Direction::Received), 1_700_000_000_123_456_000).unwrap();
        write_frame(&mut w, &frame(1, 900, Direction::Sent), 0).unwrap();
        // Byte-order magic and version 1.0 of the section header.
        assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
        assert_eq!(file[8..16], [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]);
        // if_tsresol: option 9 of length 1, value 9, padded to 4 bytes.
        assert!(file.windows(8).any(|w| w == [9, 0, 1, 0, 9, 0, 0, 0]));
        // The second packet: type, length, interface, timestamp (high half first), lengths, data and padding, epb_flags.
        let last: Vec<u32> =
            file[file.len() - 48..].chunks(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
        assert_eq!(last, [6, 48, 1, 0, 900, 3, 3, 0x0009_0807, 0x0004_0002, 2, 0, 48]);
        let mut reader = PcapNgReader::new(file.as_slice()).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(p) = block.unwrap().into_owned() {
                packets.push((p.interface_id, p.timestamp, p.data.into_owned()));
            }
        }
        let first = Duration::from_nanos(1_700_000_000_123_456_005);
        assert_eq!(packets, [(0, first, vec![7, 8, 9]), (1, Duration::from_nanos(900), vec![7, 8, 9])]);
    }
}
