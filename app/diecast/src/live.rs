//! Commands for a lab that runs, and for what it has recorded.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diecast_core_experiment::ChangeWords;
use diecast_host_run::{
    Answer, CaptureCounts, CaptureRequest, Changed, ClockWords, NodeClock, Pace, Request, When, on_interrupt,
    replay_run,
};

use crate::cli::{CaptureArgs, ClockArgs, LinkAction, LinkArgs, PaceArgs, ReplayArgs};
use crate::commands::{Done, FAILED, Fault, HOST, TEXT, fault};

/// No chunk of a capture is longer; more means that the other end is no lab.
const CHUNK_BYTES_MAX: usize = 16 << 20;
/// How often a waiting capture looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(100);

macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// The control socket of the living lab whose id begins so.
fn socket_of(lab: &str) -> Result<PathBuf, Fault> {
    let labs = diecast_host_node::labs().map_err(|e| fault(HOST, e))?;
    let alive: Vec<_> = labs.into_iter().filter(|l| l.alive).collect();
    let mut found = alive.iter().filter(|l| !lab.is_empty() && l.id.starts_with(lab));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.path.join("control.sock")),
        (Some(_), Some(_)) => Err(fault(TEXT, format!("several labs begin with '{lab}', expected the id of one"))),
        (None, _) => {
            let ids: Vec<&str> = alive.iter().map(|l| l.id.as_str()).collect();
            let running = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
            Err(fault(TEXT, format!("no lab '{lab}' runs\n  hint: running: {running}")))
        }
    }
}

/// Sends a request; the connection behind the answer's line.
fn ask(lab: &str, request: &Request) -> Result<(Answer, BufReader<UnixStream>), Fault> {
    let socket = socket_of(lab)?;
    let asked = || -> std::io::Result<_> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        Ok((serde_json::from_str(&line)?, reader))
    };
    asked().map_err(|e| fault(HOST, format!("asking lab {lab}: {e}")))
}

fn refused(answer: Answer) -> Fault {
    match answer {
        Answer::Faults(faults) => fault(TEXT, faults.join("\n")),
        Answer::Error(e) => fault(HOST, e),
        other => fault(HOST, format!("the lab gave another answer: {other:?}")),
    }
}

pub fn link(a: LinkArgs) -> Done {
    let one_way = a.one_way;
    let change = match a.action {
        LinkAction::Set { link, settings } => ChangeWords::Set { links: vec![link], settings, one_way },
        LinkAction::Cut { links } => ChangeWords::Cut { links, one_way },
        LinkAction::Heal { links } => ChangeWords::Heal { links, one_way },
        LinkAction::Flap { links, down, up, times } => {
            ChangeWords::Flap { links, one_way, down_ns: down, up_ns: up, times }
        }
        LinkAction::Partition { sides } => ChangeWords::Partition { sides },
        LinkAction::Join => ChangeWords::Join,
        LinkAction::Reroute => ChangeWords::Reroute,
    };
    let when = match (a.at, a.from_now) {
        (Some(ns), _) => When::At(ns),
        (_, Some(ns)) => When::In(ns),
        _ => When::Now,
    };
    match ask(&a.lab, &Request::Link { change, when })?.0 {
        Answer::Changed(changed) if a.json => say!("{}", serde_json::to_string(&changed).unwrap_or_default()),
        Answer::Changed(changed) => say!("{}", sentence(&changed)),
        other => return Err(refused(other)),
    }
    Ok(0)
}

fn sentence(c: &Changed) -> String {
    let verb = if c.later { "takes effect" } else { "took effect" };
    let seconds = |ns: u64| format!("{}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000);
    let load = c.after_load_ns.map_or(String::new(), |ns| format!(", {} after the load's", seconds(ns)));
    format!("{}: {verb} {} after the lab's start{load} (virtual)", c.change, seconds(c.after_start_ns))
}

pub fn clock(a: &ClockArgs) -> Done {
    let words = ClockWords { node: a.node.clone(), offset_ns: a.offset, step_ns: a.step, drift_ppb: a.drift };
    match ask(&a.lab, &Request::Clock(words))?.0 {
        Answer::Clocks(clocks) if a.json => say!("{}", serde_json::to_string(&clocks).unwrap_or_default()),
        Answer::Clocks(clocks) => clocks.iter().for_each(|c| say!("{}", clock_line(c))),
        other => return Err(refused(other)),
    }
    Ok(0)
}

/// How fast a lab runs, where it can be asked.
pub fn pace_of(lab: &str) -> Option<Pace> {
    match ask(lab, &Request::Pace) {
        Ok((Answer::Pace(pace), _)) => Some(pace),
        _ => None,
    }
}

pub fn pace(a: &PaceArgs, request: &Request) -> Done {
    match ask(&a.lab, request)?.0 {
        Answer::Pace(pace) if a.json => say!("{}", serde_json::to_string(&pace).unwrap_or_default()),
        Answer::Pace(p) if p.paused => say!("paused; TDF {} once it goes on", p.tdf),
        Answer::Pace(p) => say!("runs at TDF {}", p.tdf),
        other => return Err(refused(other)),
    }
    Ok(0)
}

fn clock_line(c: &NodeClock) -> String {
    let (offset, drift) = (c.offset_ns as f64 / 1e6, c.drift_ppb as f64 / 1e3);
    let own = match (c.frequency_ppb, c.slew_ns) {
        (0, 0) => String::new(),
        (f, s) => format!(", steered by {:+.3} ppm with {:+.6} ms to slew", f as f64 / 1e3, s as f64 / 1e6),
    };
    let kept = if c.synchronised { "synchronised" } else { "not synchronised" };
    format!("{}: {offset:+.6} ms, drift {drift:+.3} ppm{own}, {kept}", c.node)
}

pub fn capture(a: &CaptureArgs) -> Done {
    let request = CaptureRequest { places: a.places.clone(), frames_max: a.frames, v_span_ns: a.duration };
    // Before anything is asked for: a file that can't be written is a fault of the command.
    let mut file = File::create(&a.out).map_err(|e| fault(TEXT, format!("cannot write {}: {e}", a.out.display())))?;
    let stop = on_interrupt();
    let (answer, mut reader) = match ask(&a.lab, &Request::Capture(request)) {
        Ok((Answer::Capturing { places }, reader)) => (places, reader),
        Ok((other, _)) => return Err(discard(a, refused(other))),
        Err(e) => return Err(discard(a, e)),
    };
    eprintln!("capturing {}; Ctrl-C ends it", answer.join(", "));
    let ended = Arc::new(AtomicBool::new(false));
    let closing = reader.get_ref().try_clone().map_err(|e| fault(HOST, e))?;
    let watcher = {
        let ended = ended.clone();
        std::thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                if stop() {
                    // The lab then sends what it has, and the end.
                    let _ = closing.shutdown(Shutdown::Write);
                    return;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        })
    };
    let copied = copy(&mut reader, &mut file);
    ended.store(true, Ordering::Release);
    let _ = watcher.join();
    let counts = copied.map_err(|e| fault(HOST, format!("the capture broke off: {e}")))?;
    say!("{} frames in {}; {} dropped by the capture", counts.frames, a.out.display(), counts.dropped);
    Ok(0)
}

/// A capture that never began leaves no file.
fn discard(a: &CaptureArgs, e: Fault) -> Fault {
    let _ = std::fs::remove_file(&a.out);
    e
}

fn copy(reader: &mut impl BufRead, file: &mut File) -> std::io::Result<CaptureCounts> {
    let mut chunk = Vec::new();
    loop {
        let mut length = [0; 4];
        reader.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            return Ok(serde_json::from_str(&line)?);
        }
        if length > CHUNK_BYTES_MAX {
            return Err(std::io::Error::other(format!("a chunk of {length} bytes")));
        }
        chunk.resize(length, 0);
        reader.read_exact(&mut chunk)?;
        file.write_all(&chunk)?;
    }
}

pub fn replay(a: &ReplayArgs) -> Done {
    let replayed = replay_run(&a.directory).map_err(|e| fault(TEXT, format!("{}: {e}", a.directory.display())))?;
    let same = replayed.is_same();
    if a.json {
        say!("{}", diecast_core_report::to_json(&replayed));
    } else {
        let order = replayed.parted.as_deref().unwrap_or("each as in the run: instant, receiver, content, order");
        let mark = if replayed.parting.is_some() { "  DIFFER " } else { ", " };
        say!("{} frames and changes in, {} deliveries{mark}{order}", replayed.records, replayed.deliveries);
        for p in &replayed.pipes {
            let (run, again) = (p.run.1.total(), p.replay.1.total());
            let mark = if p.run == p.replay { "" } else { "  DIFFERS" };
            say!("{}:{}  {} packets, {run} dropped; replay {} and {again}{mark}", p.from, p.to, p.run.0, p.replay.0);
        }
        say!("{}", if same { "the same drops for the same causes, the same deliveries" } else { "NOT THE SAME" });
    }
    Ok(if same { 0 } else { FAILED })
}
