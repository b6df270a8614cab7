//! From an [`Experiment`](diecast_core_experiment::Experiment) and facts about the host to a [`Plan`]: what runs
//! where, with which share of a real core, which addresses and which links; or a [`Refusal`].
//!
//! * **Modes.** Baseline is TDF 1 with full resources; diecast gives each core speed/TDF of a real core; naive
//!   is TDF 1 under a quota of cores * speed / S; native has neither envelope nor meter and needs speed 1.
//! * **Placement** is a function of the catalog and the CPUs alone, so it is the same in every mode.
//! * **Links** keep the catalog's units in every mode: the emulator works in virtual time.
//! * **Start.** All programs are started in the catalog's order without waiting for each other; when every
//!   readiness check has succeeded the workload starts. `within` counts from the program's own start.
//! * Shares are exact ratios; a comparison that refuses or accepts never rounds.
#![forbid(unsafe_code)]

mod capacity;
mod make;
mod model;
mod network;
mod options;
mod place;
mod ratio;
mod refusal;
mod render;
mod retime;

pub use diecast_core_experiment::Mode;
pub use make::plan;
pub use model::{
    CpuLoad, HOST_ADDRESS, HOST_NAME, Plan, PlannedFault, PlannedFile, PlannedLoad, PlannedNode, PlannedProgram,
    PlannedWay, PlannedWorkload, Quota, QuotaPurpose, Role, WayFrom,
};
pub use network::{changes, nics_of};
pub use options::{
    CALL_SITES_DEFAULT, CALL_SITES_MAX, GRAIN_NS_DEFAULT, GRAIN_NS_WITH_DEBT, HostFacts, NODE_CORES_MAX, PlanOptions,
    Scale, ScaleError, Tsc, TscError,
};
pub use ratio::Ratio;
pub use refusal::{Place, Reason, Refusal};
pub use retime::Probing;
