#!/bin/sh
# What a frame costs: a clock read (at most native + 20 ns), a system call without time (50 ns) and a trapped wait
# (3 us), measured in turns natively and in frames. One JSON line per TDF; exit 1 when a bar is missed.
set -eu
cd "$(dirname "$0")/.."
exec cargo run --quiet --release --package diecast-tests --bin frame-cost
