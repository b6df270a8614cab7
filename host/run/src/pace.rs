//! Pause and resume of a running lab, and another rate.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use diecast_core_plan::Refusal;
use diecast_core_vtime::{Tdf, VirtNs};
use diecast_host_net::{EmulatorHandle, Scheduling, SharedFrame, become_fifo};
use diecast_host_node::Cgroup;
use diecast_host_supervisor::{LabFrame, NodeFrame, PaceError, Standing, Stretch, sockets_of};
use serde::{Deserialize, Serialize};

use crate::kernel_times::{Followed, KernelTimes};

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
    /// That of the kernel's times and quotas, and of timers that are held: `tdf` may be for the end of a pause.
    in_force: Tdf,
    /// Since the load was measured.
    lowest: Tdf,
    followed: Followed,
    standing: Option<Standing>,
    /// Nothing changes any more.
    ended: bool,
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
    #[error("the lab is ending: its load is over, and its nodes are being removed")]
    Ending,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("listing the nodes' sockets: {0}")]
    Sockets(std::io::Error),
    #[error(transparent)]
    Pace(#[from] PaceError),
}

/// A lab's world: what has to stop with it.
pub struct World {
    pub frame: Arc<LabFrame>,
    pub nodes: Vec<Arc<NodeFrame>>,
    kernel: KernelTimes,
    map: Arc<SharedFrame>,
    emulator: EmulatorHandle,
    state: Mutex<State>,
    probing: AtomicBool,
}

impl World {
    pub fn new(
        frame: Arc<LabFrame>,
        nodes: Vec<Arc<NodeFrame>>,
        kernel: KernelTimes,
        map: Arc<SharedFrame>,
        emulator: EmulatorHandle,
    ) -> World {
        let tdf = kernel.plan.tdf;
        let state = State {
            tdf,
            in_force: tdf,
            lowest: tdf,
            followed: Followed::default(),
            standing: None,
            ended: false,
            since: frame.now(),
            took_ns: 0,
        };
        World { frame, nodes, kernel, map, emulator, state: Mutex::new(state), probing: AtomicBool::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How fast it runs.
    pub fn pace(&self) -> Pace {
        self.state().shown()
    }

    /// Its TDF, that of a paused lab once it goes on.
    pub fn tdf(&self) -> Tdf {
        self.state().tdf
    }

    /// The lowest TDF that it has had since it was measured: no real span was a longer virtual one at any time.
    pub fn lowest_tdf(&self) -> Tdf {
        self.state().lowest
    }

    /// What lies before now is not measured.
    pub fn measuring_begins(&self) {
        let mut state = self.state();
        state.lowest = state.in_force;
    }

    /// Whether it runs at a lower TDF for a moment, to see what its work costs there.
    pub fn probing(&self) -> bool {
        self.probing.load(Relaxed)
    }

    /// Runs at a lower TDF until [`World::probed`]; whether it does.
    pub fn probe(&self, tdf: Tdf) -> bool {
        self.probing.store(self.retime(tdf).is_ok(), Relaxed);
        self.probing()
    }

    /// Goes on at its own TDF, unless somebody has given it another since.
    pub fn probed(&self, probe: Tdf) {
        if self.tdf() == probe {
            // What refused it could not have let it probe.
            let _ = self.retime(self.kernel.plan.tdf);
        }
        self.probing.store(false, Relaxed);
    }

    /// A link has come to mark packets.
    pub fn ask_for_marks(&self) {
        self.kernel.ask_for_marks(self.tdf());
    }

    /// No virtual nanosecond passes from now on.
    pub fn pause(&self) -> Result<Pace, WorldError> {
        self.change(|state| {
            if state.standing.is_some() {
                return Err(WorldError::Already("paused"));
            }
            let (standing, since) = self.stand_still()?;
            self.follow();
            (state.standing, state.since) = (Some(standing), since);
            Ok(())
        })
    }

    /// Time goes on.
    pub fn resume(&self) -> Result<Pace, WorldError> {
        self.change(|state| {
            let standing = state.standing.take().ok_or(WorldError::Already("running"))?;
            self.go_on(state, standing)
        })
    }

    /// From now on, or from the end of the pause on, another TDF.
    pub fn retime(&self, tdf: Tdf) -> Result<Pace, WorldError> {
        self.change(|state| {
            // Before anything stops; a mode that has no TDF is refused first.
            self.kernel.quotas(tdf)?;
            if self.nodes.len() < self.kernel.cgroups.len() {
                return Err(WorldError::NoFrames);
            }
            if state.standing.is_none() && state.tdf != tdf {
                let (standing, _) = self.stand_still()?;
                state.tdf = tdf;
                return self.go_on(state, standing);
            }
            state.tdf = tdf;
            Ok(())
        })
    }

    /// A lab that ends must not stand still, now or later: its programs could not end.
    pub fn ends(&self) {
        let _ = self.change(|state| {
            state.ended = true;
            state.standing.take().map_or(Ok(()), |standing| self.go_on(state, standing))
        });
    }

    fn stand_still(&self) -> Result<(Standing, VirtNs), WorldError> {
        if self.nodes.len() < self.kernel.cgroups.len() {
            return Err(WorldError::NoFrames);
        }
        self.frame.has_room_for(2)?;
        Ok(self.frame.stand_still(&self.nodes(), || self.freeze(), || self.thaw())?)
    }

    /// From a standstill on the state's TDF is in force, or the one before where that can't be.
    fn go_on(&self, state: &mut State, standing: Standing) -> Result<(), WorldError> {
        let mut stretch = Stretch { from: state.in_force, to: state.tdf };
        let followed = self.kernel_follows(state, stretch);
        if followed.is_err() {
            stretch.to = stretch.from;
        }
        (state.tdf, state.in_force) = (stretch.to, stretch.to);
        state.lowest = if stretch.to.as_f64() < state.lowest.as_f64() { stretch.to } else { state.lowest };
        state.since = self.frame.go_on(&self.nodes(), standing, stretch, || {
            self.follow();
            self.thaw();
        })?;
        followed
    }

    fn kernel_follows(&self, state: &mut State, stretch: Stretch) -> Result<(), WorldError> {
        if stretch.from == stretch.to {
            return Ok(());
        }
        let quotas = self.kernel.quotas(stretch.to)?;
        let sockets = sockets_of(&self.nodes()).map_err(WorldError::Sockets)?;
        self.kernel.follow(&quotas, &sockets, &mut state.followed, stretch);
        Ok(())
    }

    /// A change, made by a thread that nothing delays.
    fn change(&self, what: impl FnOnce(&mut State) -> Result<(), WorldError> + Send) -> Result<Pace, WorldError> {
        let made = thread::scope(|scope| {
            let made = scope.spawn(|| {
                // Without it a busy host makes a pause take longer, and the answer says how long.
                let _: Scheduling = become_fifo(PRIORITY);
                let mut state = self.state();
                if state.ended {
                    return Err(WorldError::Ending);
                }
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
        Cgroup::freeze_all(&self.kernel.cgroups).map_err(|e| e.to_string())
    }

    fn thaw(&self) {
        self.kernel.cgroups.iter().for_each(Cgroup::thaw);
    }

    /// The emulator goes by the new map.
    fn follow(&self) {
        let new = self.frame.map();
        drop(self.map.update(|map| std::mem::replace(map, new)));
        self.emulator.kick();
    }
}
