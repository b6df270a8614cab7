#!/bin/bash
# Runs the web tier on this machine's loopback, without DieCast, and prints what it costs in CPU time:
# start-up of each program, CPU per request of each tier, and the load each tier could carry at its node's speed.
#   examples/web-tier/measure.sh [RATE] [SECONDS]        (default 200 requests/s for 10 s)
# Needs haproxy, redis, uwsgi, python3-jinja2, python3-redis and a release build of diecast-loadgen.
# Ports 17080 to 17084 and 17379 must be free; LOADGEN names another load generator binary.
set -euo pipefail
rate=${1:-200} seconds=${2:-10}
here=$(cd "$(dirname "$0")" && pwd)
loadgen=${LOADGEN:-$here/../../target/release/diecast-loadgen}
work=$(mktemp -d)
pids=()

stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT

fail() { echo "measure.sh: $*" >&2; tail -n 20 "$work"/*.log >&2; exit 1; }

for program in haproxy redis-server redis-cli uwsgi curl; do
    command -v "$program" >/dev/null || {
        echo "measure.sh: no $program; apt-get install curl haproxy python3-jinja2 python3-redis redis uwsgi-core uwsgi-plugin-python3" >&2
        exit 3
    }
done
[ -x "$loadgen" ] || { echo "measure.sh: no $loadgen; build it: cargo build --release -p diecast-loadgen" >&2; exit 3; }

# start NAME COMMAND...: runs it in the background; its pid is then in ${pid_of[NAME]}.
declare -A pid_of
start() {
    local name=$1
    shift
    "$@" >"$work/$name.log" 2>&1 &
    pid_of[$name]=$!
    pids+=($!)
}

# within SECONDS COMMAND...: waits until the command succeeds.
within() {
    local tries=$(($1 * 20))
    shift
    until "$@" >/dev/null 2>&1; do
        ((tries-- > 0)) || fail "gave up waiting for: $*"
        sleep 0.05
    done
}

# Processes of a tree, the root first.
tree() {
    local child
    echo "$1"
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do tree "$child"; done
}

# cpu_ns PID...: CPU time of these process trees so far, of children that ended as well (those in ticks of 10 ms).
cpu_ns() {
    local pid root
    for root in "$@"; do
        for pid in $(tree "$root"); do
            cat "/proc/$pid/task/"*/schedstat 2>/dev/null || true
            # The fields behind the name, which may hold spaces: the 14th and 15th are the children's ticks.
            sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | awk '{ print ($14 + $15) * 10000000 }'
        done
    done | awk '{ sum += $1 } END { printf "%.0f\n", sum }'
}

start db env DB_PORT=17379 "$here/db.sh" --bind 127.0.0.1
within 10 grep -q 'items loaded' "$work/db.log"
for i in 1 2 3 4; do
    start "app-$i" env DB_HOST=127.0.0.1 DB_PORT=17379 BIND=127.0.0.1:1708$i uwsgi --ini "$here/uwsgi.ini"
    within 20 curl -fs "http://127.0.0.1:1708$i/health"
done
start lb env LB_BIND=127.0.0.1:17080 APP_1=127.0.0.1:17081 APP_2=127.0.0.1:17082 APP_3=127.0.0.1:17083 \
    APP_4=127.0.0.1:17084 haproxy -db -f "$here/lb.cfg"
within 10 curl -fs http://127.0.0.1:17080/health

curl -fs 'http://127.0.0.1:17080/item/42?quantity=2' | grep -q '2 for 33.06 EUR' || fail "item 42 is not the page expected"
[ "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:17080/item/1001)" = 404 ] || fail "item 1001 exists"
[ "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:17080/item/x)" = 400 ] || fail "item x is not refused"

echo "start-up, CPU seconds (at most 0.5 each):"
for name in db app-1 app-2 app-3 app-4 lb; do
    cpu_ns "${pid_of[$name]}" | awk -v name=$name '{ printf "  %-6s %.3f\n", name, $1 / 1e9; exit ($1 > 5e8) }' ||
        fail "$name needs more than 0.5 CPU seconds to start"
done

# The warm-up is outside: caches, connections and the idle processes' own ticks are there before the first reading.
(cd "$work" && "$loadgen" http://127.0.0.1:17080/ --rate "$rate" --seed 1 --stream warm --warm-up 0 --measure 2s >/dev/null)
apps=("${pid_of[app-1]}" "${pid_of[app-2]}" "${pid_of[app-3]}" "${pid_of[app-4]}")
before=("$(cpu_ns "${pid_of[lb]}")" "$(cpu_ns "${apps[@]}")" "$(cpu_ns "${pid_of[db]}")")
(cd "$work" && "$loadgen" http://127.0.0.1:17080/ --rate "$rate" --seed 7 --stream load-1 --warm-up 0 --measure "${seconds}s") |
    tee "$work/load.out"
after=("$(cpu_ns "${pid_of[lb]}")" "$(cpu_ns "${apps[@]}")" "$(cpu_ns "${pid_of[db]}")")
grep -q '^errors=0$' "$work/load.out" || fail "errors at $rate/s"

requests=$(sed -n 's/.*requests=//p' "$work/load.out")
load_ns=$(sed -n 's/^cpu_per_request_ns=//p' "$work/load.out")
echo "CPU per request (application at most 1 ms), and the load at which the tier's nodes are full:"
report() { # NAME NS_PER_REQUEST NODES SPEED
    awk -v name="$1" -v ns="$2" -v nodes="$3" -v speed="$4" \
        'BEGIN { printf "  %-5s %7.1f us   %d x speed %.2f: %5.0f requests/s\n", name, ns / 1e3, nodes, speed, nodes * speed * 1e9 / ns }'
}
report load "$load_ns" 2 0.10
report lb $(((after[0] - before[0]) / requests)) 1 0.10
report app $(((after[1] - before[1]) / requests)) 4 0.15
report db $(((after[2] - before[2]) / requests)) 1 0.20
[ $(((after[1] - before[1]) / requests)) -le 1000000 ] || fail "the application needs more than 1 ms of CPU per request"
