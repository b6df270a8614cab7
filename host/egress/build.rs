//! The BPF programs for debt at egress.

#[path = "../tcp/compile.rs"]
mod compile;

fn main() {
    println!("cargo::rerun-if-changed=../tcp/compile.rs");
    compile::bpf("../../freestanding/bpf-egress/debt.bpf.c", "debt.bpf.o");
}
