//! Pause and resume of a running lab.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use diecast_core_vtime::{Tdf, VirtNs};
use diecast_host_net::{EmulatorHandle, Scheduling, SharedFrame, become_fifo};
use diecast_host_node::Cgroup;
use diecast_host_supervisor::{LabFrame, NodeFrame, PaceError, Standing};
use serde::{Deserialize, Serialize};

/// Before everything, the emulator included: whoever stops a lab must not wait for it.
const PRIORITY: u8 = 51;

/// How fast a lab runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pace {
    /// The TDF, also of a paused lab once it goes on.
    pub tdf: String,
    /// No virtual time passes.
    pub paused: bool,
    /// The virtual instant from which this holds.
    pub v_ns: u64,
    /// How long it took, real ns: until the last thread had stopped, or could go on.
    pub took_ns: u64,
}

struct State {
    tdf: Tdf,
    standing: Option<Standing>,
    since: VirtNs,
    took_ns: u64,
}

impl State {
    fn shown(&self) -> Pace {
        let (tdf, paused) = (self.tdf.to_string(), self.standing.is_some());
        Pace { tdf, paused, v_ns: self.since.0, took_ns: self.took_ns }
    }
}

/// Why a lab's pace was not changed.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    #[error("the lab is {0} already")]
    Already(&'static str),
    #[error("the lab's nodes are in no frames (modes naive and native): their programs can't be paused")]
    NoFrames,
    #[error(transparent)]
    Pace(#[from] PaceError),
}

/// A lab's world: what has to stop with it.
pub struct World {
    pub frame: Arc<LabFrame>,
    pub nodes: Vec<Arc<NodeFrame>>,
    cgroups: Vec<Cgroup>,
    map: Arc<SharedFrame>,
    emulator: EmulatorHandle,
    state: Mutex<State>,
}

impl World {
    pub fn new(
        frame: Arc<LabFrame>,
        nodes: Vec<Arc<NodeFrame>>,
        cgroups: Vec<Cgroup>,
        map: Arc<SharedFrame>,
        emulator: EmulatorHandle,
        tdf: Tdf,
    ) -> World {
        let state = Mutex::new(State { tdf, standing: None, since: frame.now(), took_ns: 0 });
        World { frame, nodes, cgroups, map, emulator, state }
    }

    /// How fast it runs.
    pub fn pace(&self) -> Pace {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).shown()
    }

    /// No virtual nanosecond passes from now on.
    pub fn pause(&self) -> Result<Pace, WorldError> {
        self.change(|state| {
            if state.standing.is_some() {
                return Err(WorldError::Already("paused"));
            }
            if self.nodes.len() < self.cgroups.len() {
                return Err(WorldError::NoFrames);
            }
            self.frame.has_room_for(2)?;
            let stopped = self.frame.stand_still(&self.nodes(), || self.freeze(), || self.thaw());
            let (standing, since) = stopped?;
            self.follow();
            (state.standing, state.since) = (Some(standing), since);
            Ok(())
        })
    }

    /// Time goes on.
    pub fn resume(&self) -> Result<Pace, WorldError> {
        self.change(|state| {
            let standing = state.standing.take().ok_or(WorldError::Already("running"))?;
            let gone_on = self.frame.go_on(&self.nodes(), standing, (state.tdf, state.tdf), || {
                self.follow();
                self.thaw();
            });
            state.since = gone_on?;
            Ok(())
        })
    }

    /// A change, made by a thread that nothing delays.
    fn change(&self, what: impl FnOnce(&mut State) -> Result<(), WorldError> + Send) -> Result<Pace, WorldError> {
        let made = thread::scope(|scope| {
            let made = scope.spawn(|| {
                // Without it a busy host makes a pause take longer, and the answer says how long.
                let _: Scheduling = become_fifo(PRIORITY);
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let began = Instant::now();
                what(&mut state)?;
                state.took_ns = began.elapsed().as_nanos() as u64;
                Ok(state.shown())
            });
            made.join()
        });
        made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn nodes(&self) -> Vec<&NodeFrame> {
        self.nodes.iter().map(AsRef::as_ref).collect()
    }

    fn freeze(&self) -> Result<(), String> {
        Cgroup::freeze_all(&self.cgroups).map_err(|e| e.to_string())
    }

    fn thaw(&self) {
        self.cgroups.iter().for_each(Cgroup::thaw);
    }

    /// The emulator goes by the new map.
    fn follow(&self) {
        let new = self.frame.map();
        drop(self.map.update(|map| std::mem::replace(map, new)));
        self.emulator.kick();
    }
}
