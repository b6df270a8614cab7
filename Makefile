# What a newcomer needs. `make` lists the targets; every target can be run again at no cost.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup rust packages build test freestanding-test demo conformance bench-validate bench-net bench-performance bench-servers bench-alarm bench-cpu bench-cpu-full bench-cpu-handed bench-cost bench-fairness bench-shares bench-web-tier soak fuzz check clean
.NOTPARALLEL:

# Debian packages: to build, to run nodes, and the programs of examples/web-tier.yaml.
# Go, Node.js and a JVM are used by conformance tests where they are installed; those tests say why they skip.
PACKAGES := git runc tshark curl procps clang llvm libbpf-dev libelf-dev zlib1g-dev pkg-config iproute2 iputils-ping gcc g++ libc6-dev musl-tools \
	strace gdb haproxy redis stress-ng uwsgi-core uwsgi-plugin-python3 python3 python3-jinja2 python3-redis

# Tests in which the meter is what matters.
METERED_TESTS := tracers:: cost::a_ cpu_time_agrees by_cpu_clocks sigtraps_that small_alternate_stacks_under signals_are \
	every_new_process_is a_thread_that_execs execs_keep_descriptors ten_thousand_execs programs_without_environment
METERED_SYSTEM_TESTS := without_a_meter_is_named flooded_node

TARGET := $(or $(CARGO_TARGET_DIR),target)
DIECAST := $(TARGET)/release/diecast
FREESTANDING := $(patsubst %/Cargo.toml,%,$(wildcard freestanding/*/Cargo.toml))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: rust packages ## install what is missing (Debian packages; needs root only when some are)

rust:
	@command -v cargo >/dev/null 2>&1 || { \
		echo "setup: Rust is missing: install rustc and cargo 1.85 or later (https://rustup.rs), then run make again" >&2; \
		exit 3; }
	@# 1.85 is what Cargo.toml asks for (rust-version).
	@cargo --version | awk '{ split($$2, v, "."); exit !(v[1] > 1 || v[2] >= 85) }' || { \
		echo "setup: $$(cargo --version) is too old: install Rust 1.85 or later (https://rustup.rs), then run make again" >&2; \
		exit 3; }
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || { \
		echo "setup: rustfmt or clippy is missing: rustup component add rustfmt clippy, then run make again" >&2; \
		exit 3; }

packages:
	@command -v dpkg-query >/dev/null 2>&1 || { \
		echo "setup: this is no Debian system: install the equivalents of $(PACKAGES)" >&2; exit 3; }; \
	installed=$$(dpkg-query -W -f='$${Package} $${db:Status-Status}\n' $(PACKAGES) 2>/dev/null); \
	missing=; \
	for package in $(PACKAGES); do \
		echo "$$installed" | grep -qx "$$package installed" || missing="$$missing $$package"; \
	done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" != 0 ]; then \
		echo "setup: not root, and these packages are missing:$$missing" >&2; \
		echo "setup: run: sudo apt-get install --no-install-recommends$$missing" >&2; \
		exit 3; \
	fi; \
	echo "setup: installing$$missing"; \
	DEBIAN_FRONTEND=noninteractive; RUNLEVEL=1; export DEBIAN_FRONTEND RUNLEVEL; \
	apt-get update -q && apt-get install -q -y --no-install-recommends$$missing

build: setup ## build the release binary
	cargo build --release --package diecast
	@# Apart: built together they share features, and with the load generator's the emulator is 5 % slower.
	cargo build --release --package diecast-loadgen

test: build check freestanding-test ## everything that must hold: set-up, build, checks, tests
	cargo test --workspace --exclude diecast-tests
	@# Four runs at a time (tests/src/runs.rs): frames at TDF 10 sleep most of the time. Who wants the machine alone waits for all
	@# others, on a thread of the tests'.
	cargo test --package diecast-tests --test conformance -- --test-threads=64
	cargo test --package diecast-tests --lib --bins --test system
	@# Kernels before 6.18 have an event of each thread instead of a clock of each core.
	DIECAST_HITS=threads cargo test --package diecast-tests --test conformance -- --test-threads=64 $(METERED_TESTS)
	DIECAST_HITS=threads cargo test --package diecast-tests --test system -- $(METERED_SYSTEM_TESTS)

freestanding-test:
	@set -e; for folder in $(FREESTANDING); do \
		echo "cargo test in $$folder"; (cd $$folder && cargo test --quiet); \
	done

demo: build ## predict examples/web-tier.yaml from a tenth of its resources
	@# 4: it went well, and some of its numbers are not to be trusted, as it says.
	$(DIECAST) validate examples/web-tier.yaml --scale 10 || [ $$? -eq 4 ]

bench-validate: build ## accuracy at 30 % and 70 % of capacity, against native, and of a fixed loop (40 minutes at most)
	benches/validate.py

bench-net: build ## links, a dumbbell and the emulator against arithmetic, at TDF 1, 10 and 100 (27 minutes)
	cargo build --release --package diecast-tests --bin net-cost
	benches/net.py

bench-performance: build ## what a frame costs, beside native and libfaketime; writes docs/performance.md (a minute)
	cargo build --release --package diecast-tests --bin frame-cost
	benches/performance.py --write

bench-servers: build ## servers of Debian's packages under load, natively and in a frame; skips what is not installed (20 minutes)
	benches/servers.py

bench-alarm: build ## runs that are disturbed on purpose must say so, quiet ones must not, 20 of each kind (9 minutes)
	benches/alarm.py

bench-cpu: build ## single requests against native: 1, 8 and 16 servers on a core, a CFS quota beside them (30 minutes)
	benches/cpu.py

bench-cpu-full: build ## the same in five times as many blocks, by hand, for percentiles with narrower intervals (2.5 hours)
	benches/cpu.py --blocks 10

bench-cpu-handed: build ## the same of requests that two threads or processes of a server work on (30 minutes)
	benches/cpu.py --handed

bench-cost: build ## what envelope, meter, emulator and BPF programs add, per node and per request; writes docs/performance.md (3 minutes)
	benches/cost.py --write

bench-fairness: build ## equal nodes, equal shares? POV-Ray, iperf3, scp and MPI on 3 to 10 nodes; skips what is not installed (45 minutes)
	benches/fairness.py

bench-shares: build ## shares of 1 to 16 threads on 1 to 4 cores, a contended mutex, speed apart from TDF, conservation, a sink of packets (44 minutes)
	benches/shares.py

bench-web-tier: build ## what the programs of examples/web-tier.yaml use: CPU time of a start, and of a request at each tier (a minute)
	examples/web-tier/measure.sh

soak: build ## labs for two hours, or MINUTES=5: paused, re-timed, servers killed; nothing early, hung, wrong or left
	benches/soak.py --minutes $(or $(MINUTES),120)

fuzz: rust ## random frames and damaged graphs, N=200 times as many as in the tests; random system calls of N seeds (10 minutes)
	DIECAST_FUZZ=$(or $(N),200) cargo test --release --package diecast-core-net --package diecast-core-experiment \
		--package diecast-core-plan --package diecast-host-net -- --nocapture upsets large_frames_become_right merged_frames_are_those
	DIECAST_FUZZ=$(or $(N),200) cargo test --release --package diecast-tests --test conformance -- --nocapture random_calls

conformance: build ## upstream test suites natively and in frames: CPython's, Go's, libuv's, Redis's, stress-ng (hours)
	benches/conformance.py --jobs 2

# Every other script of benches/ has a target of its name.
bench-%: build
	benches/$*.sh

check: rust ## format, lints, layers and style, generated files
	cargo xtask check

clean: ## remove what was built and what killed runs left
	@if [ -x $(DIECAST) ]; then $(DIECAST) clean; fi
	cargo clean
	@set -e; for folder in $(FREESTANDING); do (cd $$folder && cargo clean --quiet); done
