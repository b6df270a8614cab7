//! The BPF programs for debt at egress.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    println!("cargo::rerun-if-changed=../bpf/compile.rs");
    println!("cargo::rerun-if-changed=../../freestanding/bpf-egress/ages.h");
    println!("cargo::rerun-if-changed=../../freestanding/bpf-egress/hands.h");
    println!("cargo::rerun-if-changed=../../freestanding/bpf-egress/kernel.h");
    println!("cargo::rerun-if-changed=../../freestanding/bpf-egress/stalls.h");
    println!("cargo::rerun-if-changed=../../freestanding/bpf-egress/waits.h");
    println!("cargo::rerun-if-changed=../../freestanding/bpf-tick/meter.h");
    compile::bpf("../../freestanding/bpf-egress/debt.bpf.c", "debt.bpf.o");
}
