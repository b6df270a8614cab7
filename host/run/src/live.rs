//! What can be asked of a running lab over its control socket: changes of the network, and captures.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use diecast_core_experiment::{ChangeWords, NetworkNames, parse_change};
use diecast_core_journal::{ChangeSource, NetworkChange, Record};
use diecast_core_net::{Change, NetSpec};
use diecast_core_plan::{Plan, PlannedFault, changes};
use diecast_core_vtime::{Tdf, VirtNs, VirtSpan};
use diecast_host_net::{EmulatorHandle, HostNetError};
use diecast_host_supervisor::LabFrame;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capture::{CaptureRequest, Captures};
use crate::clocks::{ClockWords, Clocks, NodeClock};
use crate::pace::{Pace, World, WorldError};
use crate::recorder::Recorder;

/// A request, one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// `diecast link`.
    Link {
        /// What changes.
        change: ChangeWords,
        /// When.
        when: When,
    },
    /// `diecast clock`.
    Clock(ClockWords),
    /// `diecast pause`.
    Pause,
    /// `diecast resume`.
    Resume,
    /// `diecast retime`.
    Retime {
        /// From now on.
        tdf: String,
    },
    /// How fast the lab runs.
    Pace,
    /// `diecast capture`; the answer is followed by the file.
    Capture(CaptureRequest),
}

/// When a change takes place, virtual.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At once.
    Now,
    /// So many nanoseconds from now.
    In(u64),
    /// So many nanoseconds after the start of the load.
    At(u64),
}

/// An answer, one line of JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A change takes place.
    Changed(Changed),
    /// How the clocks differ from the lab's now.
    Clocks(Vec<NodeClock>),
    /// How fast the lab runs from now on.
    Pace(Pace),
    /// A capture has begun at these places; chunks follow.
    Capturing {
        /// Names of the places.
        places: Vec<String>,
    },
    /// Faults in the text of the request.
    Faults(Vec<String>),
    /// The lab can't.
    Error(String),
}

/// When and what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Changed {
    /// In words.
    pub change: String,
    /// The instant on the nodes' CLOCK_MONOTONIC.
    pub v_ns: u64,
    /// After the lab's start.
    pub after_start_ns: u64,
    /// After the start of the load, if that has begun.
    pub after_load_ns: Option<u64>,
    /// Whether it was still to come when this was written.
    pub later: bool,
}

/// A running lab's network, for those who ask.
pub struct Live {
    names: NetworkNames,
    net: NetSpec,
    emulator: EmulatorHandle,
    journal: Recorder,
    frame: Arc<LabFrame>,
    v_start: VirtNs,
    load_began: OnceLock<VirtNs>,
    captures: Captures,
    clocks: Clocks,
    /// Nodes ask for marks.
    marks: OnceLock<()>,
    pub(crate) world: World,
}

impl Live {
    pub fn new(plan: &Plan, emulator: EmulatorHandle, journal: Recorder, world: World) -> Live {
        let (frame, nodes) = (world.frame.clone(), world.nodes.clone());
        let net = &plan.net;
        let name = |v: diecast_core_net::VertexIx| net.vertices[v.at()].name.as_str();
        let pipes = net.pipes.iter().map(|p| (name(p.from), name(p.to)));
        let names = NetworkNames::new(plan.nodes.iter().map(|n| (n.name.as_str(), n.group.as_str())), pipes);
        let captures = Captures::new(net, emulator.clone(), frame.realtime_offset_ns());
        let v_start = match journal.records().first() {
            Some(Record::Header(header)) => header.v_start_ns,
            _ => frame.now(),
        };
        let clocks = Clocks::new(frame.clone(), nodes);
        Live {
            names,
            net: net.clone(),
            emulator,
            journal,
            frame,
            v_start,
            load_began: OnceLock::new(),
            captures,
            clocks,
            marks: if plan.marks() { OnceLock::from(()) } else { OnceLock::new() },
            world,
        }
    }

    /// The load begins: the catalog's faults count from here.
    pub fn load_begins(&self, at: VirtNs, faults: &[PlannedFault]) -> Result<(), HostNetError> {
        let _ = self.load_began.set(at);
        for fault in faults {
            let due = at.plus(fault.at_ns);
            let done = match self.emulator.change(Some(due), fault.changes.clone()) {
                // The first instants may have passed while this was being arranged.
                Err(HostNetError::Past { .. }) => self.emulator.change(None, fault.changes.clone())?,
                other => other?,
            };
            self.note(done, ChangeSource::Catalog, fault.text.clone());
        }
        Ok(())
    }

    fn note(&self, v_ns: VirtNs, source: ChangeSource, change: String) {
        let (_, r_ns) = self.journal.now();
        self.journal.write(Record::NetworkChange(NetworkChange { v_ns, r_ns, source, change }));
    }

    /// The lab runs at a lower TDF for a moment of its warm-up; whether it does.
    pub fn probe(&self, tdf: Tdf) -> bool {
        let probing = self.world.probe(tdf);
        if probing {
            let change = format!("the lab: TDF {tdf} for a moment, to see how much of its CPU time is cold code");
            self.note(VirtNs(self.world.pace().v_ns), ChangeSource::Probe, change);
        }
        probing
    }

    /// That moment is over.
    pub fn probed(&self, probe: Tdf) {
        self.world.probed(probe);
        let pace = self.world.pace();
        self.note(VirtNs(pace.v_ns), ChangeSource::Probe, format!("the lab: TDF {}", pace.tdf));
    }

    /// The load is over.
    pub fn ends(&self) {
        self.world.ends();
    }

    /// Serves one connection to the control socket.
    pub fn serve(&self, request: &Value, mut client: UnixStream) {
        let answer = match Request::deserialize(request) {
            Ok(Request::Link { change, when }) => self.link(&change, when),
            Ok(Request::Clock(words)) => self.clocks.answer(&words, &self.names, |v, text| {
                self.note(v, ChangeSource::Command, text);
            }),
            Ok(Request::Pause) => self.paced(self.world.pause(), "paused"),
            Ok(Request::Resume) => self.paced(self.world.resume(), "goes on"),
            Ok(Request::Retime { tdf }) => match tdf.parse::<Tdf>() {
                Ok(tdf) => self.paced(self.world.retime(tdf), &format!("TDF {tdf}")),
                Err(e) => Answer::Faults(vec![e.to_string()]),
            },
            Ok(Request::Pace) => Answer::Pace(self.world.pace()),
            Ok(Request::Capture(request)) => match self.captures.start(&request, &self.names) {
                Ok(started) => return started.serve(client),
                Err(answer) => answer,
            },
            Err(e) => Answer::Error(format!("request not understood: {e}")),
        };
        send(&mut client, &answer);
    }

    fn paced(&self, changed: Result<Pace, WorldError>, what: &str) -> Answer {
        match changed {
            Ok(pace) => {
                self.note(VirtNs(pace.v_ns), ChangeSource::Command, format!("the lab: {what}"));
                Answer::Pace(pace)
            }
            Err(e @ WorldError::Already(_)) => Answer::Faults(vec![e.to_string()]),
            Err(WorldError::Refused(r)) if r.exit_status() == 2 => Answer::Faults(vec![r.to_string()]),
            Err(e) => Answer::Error(e.to_string()),
        }
    }

    fn link(&self, words: &ChangeWords, when: When) -> Answer {
        let change = match parse_change(words, &self.names) {
            Ok(change) => change,
            Err(faults) => return Answer::Faults(faults.iter().map(ToString::to_string).collect()),
        };
        let at = match (when, self.load_began.get()) {
            (When::Now, _) => None,
            (When::In(ns), _) => Some(self.frame.now().plus(VirtSpan(ns))),
            (When::At(ns), Some(begin)) => Some(begin.plus(VirtSpan(ns))),
            (When::At(_), None) => {
                return Answer::Faults(vec![
                    "--at counts from the start of the load, which has not begun\n  hint: --in counts from now".into(),
                ]);
            }
        };
        let all = changes(&self.net, &change);
        let marks = all.iter().any(Change::marks);
        match self.emulator.change(at, all) {
            Ok(v) => {
                if marks {
                    self.marks.get_or_init(|| self.world.ask_for_marks());
                }
                self.note(v, ChangeSource::Command, change.to_string());
                Answer::Changed(Changed {
                    change: change.to_string(),
                    v_ns: v.0,
                    after_start_ns: v.since(self.v_start).ns(),
                    after_load_ns: self.load_began.get().filter(|begin| v >= **begin).map(|begin| v.since(*begin).ns()),
                    later: v > self.frame.now(),
                })
            }
            Err(HostNetError::Past { at, now }) => {
                let ago = now.since(at).as_secs_f64();
                Answer::Faults(vec![format!("that instant passed {ago:.6} s ago (virtual), expected one to come")])
            }
            Err(HostNetError::Spec(e)) => Answer::Faults(vec![e.to_string()]),
            Err(e) => Answer::Error(e.to_string()),
        }
    }
}

/// Writes an answer; a client that has gone away does not want it.
pub fn send(client: &mut UnixStream, answer: &Answer) {
    let text = serde_json::to_string(answer).unwrap_or_default();
    let _ = client.write_all(format!("{text}\n").as_bytes());
}
