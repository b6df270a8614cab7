#!/bin/sh
# What a frame costs: a clock read (at most native + 20 ns), a system call without time (50 ns), a trapped wait that ends at
# once and one that times out (3 us each), measured in turns natively and in frames. One JSON line per TDF; exit 1 when a bar is missed.
set -eu
cd "$(dirname "$0")/.."
exec cargo run --quiet --release --package diecast-tests --bin frame-cost
