//! The BPF program for TCP's initial RTO.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    println!("cargo::rerun-if-changed=../bpf/compile.rs");
    compile::bpf("../../freestanding/bpf-tcp/initial_rto.bpf.c", "initial_rto.bpf.o");
}
