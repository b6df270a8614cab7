//! Promises of pipes and of changes, one test each; random cases print their seed.

mod changes;
mod common;
mod disciplines;
mod hostile;
mod merge;
mod offload;
mod oracle;
mod paths;
mod pipes;
mod records;
mod scale;
