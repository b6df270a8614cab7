#!/usr/bin/env bash
# Builds the blob into the file named by $1, with its target folder in $2. host/supervisor/build.rs calls it.
set -eu
out=$1; target=$2; here=$(cd "$(dirname "$0")" && pwd)
export CARGO_TARGET_DIR=$target
# General registers only: a trampoline must keep vector registers, as a system call does.
export RUSTFLAGS="-C target-feature=-sse,-sse2,+soft-float -C relocation-model=pic -C force-unwind-tables=yes -A warnings"
cargo build --quiet --release --manifest-path "$here/Cargo.toml" 2>"$target.log" || { cat "$target.log" >&2; exit 1; }
cc -shared -nostdlib -o "$out" -Wl,-T,"$here/blob.lds" -Wl,--version-script,"$here/blob.map" \
  -Wl,--hash-style=both,-soname=linux-vdso.so.1,-Bsymbolic,-znorelro,-znoexecstack,--eh-frame-hdr,--gc-sections,--build-id=none,-zmax-page-size=4096 \
  -Wl,-u,diecast_blob_init "$target/release/libdiecast_blob.a"
