//! The BPF programs for hits from a clock of each core.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    println!("cargo::rerun-if-changed=../bpf/compile.rs");
    println!("cargo::rerun-if-changed=../../freestanding/bpf-tick/meter.h");
    compile::bpf("../../freestanding/bpf-tick/tick.bpf.c", "tick.bpf.o");
}
