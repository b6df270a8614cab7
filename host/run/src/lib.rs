//! Carries things out: one command in a frame of its own, or a whole plan.

pub mod frame;
