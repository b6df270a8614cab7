#!/usr/bin/env python3
"""Servers of Debian's packages under load, natively and in a frame: is what they say of themselves sane in virtual
time, and do their logs hold an error that a native run lacks? Prints a table, writes JSON; exit 1 when a server fails
in a frame, errs there only, or is off in rate by more than the bar, 3 when nothing ran.

Usage: benches/servers.py [--server NAME]... [--seconds S] [--grain G] [--install] [--out DIR]     (make bench-servers; 20 minutes)

A server whose programs are missing is skipped, or installed first with --install (needs root).
"""
import argparse, json, os, re, shutil, signal, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
LOAD = f"{sys.executable} {HERE}/servers_load.py"
os.environ["PATH"] += os.pathsep + "/usr/sbin:/sbin:" + ":".join(
    sorted(f"/usr/lib/postgresql/{v}/bin" for v in (os.listdir("/usr/lib/postgresql") if os.path.isdir("/usr/lib/postgresql") else [])))
# Rates of a frame, in virtual time, and native ones are of one kind when neither is so many times the other. The host
# itself changes its speed by half, and one core carries client and server at a time.
RATE_FACTOR = 2.0
# Lines that are as they must be in a frame, and why.
EXPLAINED = {"io_uring_queue_init() failed with ENOSYS": "io_uring is refused, see LIMITS.md",
             "create_uring failed: falling back to libaio": "io_uring is refused, see LIMITS.md"}
# What an operator looks for in a log.
ERROR = re.compile(r"error|warn|fail|fatal|panic|crit|emerg|alert|timed? ?out|lost|overload|too slow|stall|backwards|drift", re.I)
# Waits up to 30 s of the clock that the script sees.
READY = 'ready() { for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done; echo not ready >&2; exit 9; }\n' \
        'tcp() { (exec 3<>/dev/tcp/127.0.0.1/$1) 2>/dev/null; }\n' \
        'finish() { kill -TERM "$@"; wait "$@"; }\n'

NGINX = """daemon off; pid $D/pid; error_log $D/log/error.log notice; events {}
http { access_log off; client_body_temp_path $D/t1; proxy_temp_path $D/t2; fastcgi_temp_path $D/t3; uwsgi_temp_path $D/t4;
scgi_temp_path $D/t5; server { listen 127.0.0.1:$PORT; root $D; %s } }"""
JAVA = """import com.sun.net.httpserver.*; import java.net.*; import java.util.concurrent.*;
public class Main { public static void main(String[] a) throws Exception {
  HttpServer s = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(a[0])), 128);
  s.setExecutor(Executors.newFixedThreadPool(8));
  byte[] hello = "hello\\n".getBytes();
  s.createContext("/", x -> { x.sendResponseHeaders(200, hello.length); x.getResponseBody().write(hello); x.close(); });
  s.start(); System.err.println("started"); } }"""
NODE = """const h = require('http'); let n = 0;
h.createServer((q, r) => { n++; setTimeout(() => r.end('hello\\n'), 1); }).listen(+process.argv[2], '127.0.0.1');
setInterval(() => {}, 100); process.on('SIGTERM', () => { process.exit(0); });"""
APACHE = """ServerRoot $D
PidFile $D/pid
Listen 127.0.0.1:$PORT
ServerName localhost
ErrorLog $D/log/error.log
LogLevel info
DocumentRoot $D
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
User www-data
Group www-data
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule reqtimeout_module /usr/lib/apache2/modules/mod_reqtimeout.so
RequestReadTimeout header=2-4,MinRate=500 body=2"""
PHP = """[global]
error_log = $D/log/fpm.log
log_level = notice
daemonize = no
[www]
user = www-data
group = www-data
listen = $D/fpm.sock
listen.mode = 0666
pm = dynamic
pm.max_children = 4
pm.start_servers = 2
pm.min_spare_servers = 1
pm.max_spare_servers = 3
request_terminate_timeout = 2s
slowlog = $D/log/slow.log
request_slowlog_timeout = 1s"""
WRK = "wrk -t 1 -c 4 -d ${S}s --latency"


def wrk(text):
    ms = {"us": 1e-3, "ms": 1, "s": 1e3}
    at = {p: float(v) * ms[u] for p, v, u in re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)", text)}
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)", text)
    return float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]), at["50"], at["99"], bad[0] if bad else ""


def ours(text):
    found = json.loads(text.strip().splitlines()[-1])
    return found["rate"], found["p50_ms"], found["p99_ms"], f"{found['wrong']} wrong answers" if found["wrong"] else ""


def redis(text):
    rows = [line.strip('"').split('","') for line in text.splitlines() if line.startswith('"GET"')]
    return float(rows[0][1]), float(rows[0][4]), float(rows[0][6]), ""


def pgbench(text):
    failed = re.search(r"failed transactions: ([1-9]\d*)", text)
    latency = float(re.search(r"latency average = ([\d.]+)", text)[1])
    return float(re.search(r"tps = ([\d.]+) \(without", text)[1]), latency, None, failed[0] if failed else ""


def mysqlslap(text):
    seconds = float(re.search(r"Average number of seconds to run all queries: ([\d.]+)", text)[1])
    return 1000 / seconds, None, None, ""


def etcd(text):
    elected = re.search(r"elections after start: (\d+)", text)[1]
    *found, bad = ours(text)
    return *found, bad or ("" if elected == "0" else f"{elected} elections while under load")


# Three nodes, ended together: each would complain of the others when it stops in good order, or while it outlives them.
ETCD = """peers=; for i in 1 2 3; do peers=$peers,m$i=http://127.0.0.1:$((PORT + 10 * i + 1)); done
for i in 1 2 3; do
  c=http://127.0.0.1:$((PORT + 10 * i)) p=http://127.0.0.1:$((PORT + 10 * i + 1))
  etcd --name m$i --data-dir $D/m$i --listen-client-urls $c --advertise-client-urls $c --listen-peer-urls $p \\
    --initial-advertise-peer-urls $p --initial-cluster ${peers#,} --initial-cluster-state new --logger zap \\
    --log-outputs $D/log/m$i.log & pids="$pids $!"
done
ready tcp $((PORT + 10)); for i in 1 2 3; do ready grep -q 'serving client' $D/log/m$i.log; done
elected() { cat $D/log/m?.log | grep -cE 'became (leader|candidate)|elected leader|lost leader'; }
before=$(elected)
%s etcd $((PORT + 10)) $S > $D/answer; rc=$?
echo elections after start: $(($(elected) - before)); cat $D/answer
kill -STOP $pids; kill -KILL $pids; exit $rc""" % LOAD

# Name, packages, programs, TDF, script, how its output is read. $D is a folder with log/ in it, $PORT a free port, $S
# how long the load lasts; standard output is the load's.
SERVERS = [
    ("nginx", "nginx-core wrk", "nginx wrk", 10,
     "nginx -c $D/nginx.conf -p $D & pid=$!; ready tcp $PORT; %s http://127.0.0.1:$PORT/index.html; finish $pid" % WRK, wrk),
    ("redis", "redis-server redis-tools", "redis-server redis-benchmark", 10,
     "redis-server --port $PORT --dir $D --appendonly yes --logfile $D/log/redis.log & pid=$!; ready redis-cli -p $PORT ping\n"
     "redis-benchmark -p $PORT -c 4 -n $((S * 4000)) -t set,get --csv; finish $pid", redis),
    ("memcached", "memcached", "memcached", 10,
     "memcached -u nobody -l 127.0.0.1 -p $PORT -vv > $D/log/out 2> $D/log/err & pid=$!; ready tcp $PORT\n"
     f"{LOAD} memcached $PORT $S; rc=$?; finish $pid; exit $rc", ours),
    ("postgresql", "postgresql", "initdb postgres pgbench", 10,
     "chown -R postgres $D; as='setpriv --reuid=postgres --regid=postgres --clear-groups'\n"
     "$as initdb -D $D/data -A trust > /dev/null\n"
     "$as postgres -D $D/data -k $D -p $PORT -c log_checkpoints=on -c log_lock_waits=on -c statement_timeout=5s > $D/log/out 2>&1 & pid=$!\n"
     "ready grep -q 'ready to accept connections' $D/log/out; pgbench -h $D -p $PORT -U postgres -i -q postgres > /dev/null 2>&1\n"
     "pgbench -h $D -p $PORT -U postgres -c 2 -T $S postgres; kill -INT $pid; wait $pid", pgbench),
    ("mariadb", "mariadb-server mariadb-client", "mariadbd mariadb-install-db mysqlslap", 10,
     "chown -R mysql $D; mariadb-install-db --no-defaults --user=mysql --datadir=$D/data --auth-root-authentication-method=normal > /dev/null 2>&1\n"
     "mariadbd --no-defaults --user=mysql --datadir=$D/data --socket=$D/s --port=$PORT --log-error=$D/log/error.log --log-warnings=4 & pid=$!\n"
     "ready mysqladmin --no-defaults -S $D/s -u root ping\n"
     "mysqlslap --no-defaults -S $D/s -u root --auto-generate-sql --auto-generate-sql-load-type=mixed --concurrency=4 --number-of-queries=1000\n"
     "finish $pid", mysqlslap),
    ("apache", "apache2-bin wrk", "apache2 wrk", 10,
     "apache2 -f $D/apache.conf -DFOREGROUND & pid=$!; ready tcp $PORT; %s http://127.0.0.1:$PORT/index.html; finish $pid" % WRK, wrk),
    ("node", "nodejs wrk", "node wrk", 10,
     "node $D/main.js $PORT > $D/log/out 2>&1 & pid=$!; ready tcp $PORT; %s http://127.0.0.1:$PORT/; finish $pid" % WRK, wrk),
    ("php-fpm", "php-fpm nginx-core wrk", "php-fpm nginx wrk", 10,
     "chmod 755 $D; php-fpm -y $D/fpm.conf & fpm=$!; ready test -S $D/fpm.sock\n"
     "nginx -c $D/nginx-php.conf -p $D & pid=$!; ready tcp $PORT; %s http://127.0.0.1:$PORT/x.php; finish $pid $fpm" % WRK, wrk),
    ("jvm", "default-jdk-headless wrk", "java wrk", 10,
     # Without it an answer of two writes waits for the client's delayed acknowledgement, 40 ms of the host's in any frame.
     "java -Dsun.net.httpserver.nodelay=true $D/Main.java $PORT > $D/log/out 2>&1 & pid=$!; ready tcp $PORT\n"
     # Compiled first: for its first seconds the rate is one of how much the compilers have got done, natively too.
     "%s http://127.0.0.1:$PORT/ > $D/first; %s http://127.0.0.1:$PORT/; kill -TERM $pid; wait $pid; exit 0" % (WRK, WRK), wrk),
    ("etcd", "etcd-server", "etcd", 20, ETCD, etcd),
    ("rabbitmq", "rabbitmq-server", "rabbitmq-server", 10,
     "export HOME=$D RABBITMQ_NODENAME=load@localhost RABBITMQ_NODE_PORT=$((PORT + 1)) RABBITMQ_DIST_PORT=$((PORT + 2)) \\\n"
     "  RABBITMQ_MNESIA_BASE=$D/m RABBITMQ_LOG_BASE=$D/log RABBITMQ_PID_FILE=$D/pid RABBITMQ_CONF_ENV_FILE=/dev/null \\\n"
     "  RABBITMQ_ENABLED_PLUGINS_FILE=$D/plugins RABBITMQ_CONFIG_FILE=$D/rabbit.conf ERL_EPMD_PORT=$((PORT + 3))\n"
     "/usr/lib/rabbitmq/bin/rabbitmq-server > $D/log/out 2>&1 & pid=$!; ready tcp $PORT\n"
     f"{LOAD} stomp $PORT $S; rc=$?; kill -TERM $(cat $D/pid); wait $pid; epmd -port $((PORT + 3)) -kill > /dev/null; exit $rc", ours),
]


def say(text):
    print(text, file=sys.stderr, flush=True)


def missing(programs):
    found = lambda p: shutil.which(p) or (p == "php-fpm" and php_fpm())
    return [p for p in programs.split() if not found(p)]


def php_fpm():
    names = [n for n in os.listdir("/usr/sbin") if re.fullmatch(r"php-fpm[\d.]+", n)]
    return f"/usr/sbin/{names[0]}" if names else None


def install(packages):
    """By the host's own package manager, its services not started."""
    say(f"installing {packages}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages.split()], env=env,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


def prepared(folder, port):
    os.makedirs(f"{folder}/log")
    os.chmod(folder, 0o755)
    os.chmod(f"{folder}/log", 0o777)
    php = "location ~ \\.php$ { fastcgi_pass unix:$D/fpm.sock; include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME $D/x.php; }"
    files = {"nginx.conf": NGINX % "", "nginx-php.conf": NGINX % php, "apache.conf": APACHE, "fpm.conf": PHP, "Main.java": JAVA,
             "main.js": NODE, "index.html": "hello\n" * 100, "x.php": "<?php usleep(500); echo microtime(true), \"\\n\";",
             "plugins": "[rabbitmq_stomp].", "rabbit.conf": "stomp.listeners.tcp.1 = 127.0.0.1:$PORT\n"}
    for name, text in files.items():
        with open(f"{folder}/{name}", "w") as out:
            out.write(text.replace("$D", folder).replace("$PORT", str(port)))


def once(name, script, read, tdf, o):
    """One run; tdf 0 is native. What the load said, and the lines of the server's logs."""
    port = 20000 + os.getpid() % 1000 * 40
    with tempfile.TemporaryDirectory(prefix=f"diecast-{name}-", dir="/var/tmp") as folder:
        prepared(folder, port)
        if fpm := php_fpm():
            os.symlink(fpm, f"{folder}/php-fpm")
        env = {**os.environ, "D": folder, "PORT": str(port), "S": str(o.seconds), "PATH": os.environ["PATH"] + ":" + folder}
        command = ["bash", "-c", READY + script]
        # One core either way: natively by pinning, in a frame by what a virtual machine of one core has.
        grain = ["--grain", o.grain] if o.grain else []
        command = ["taskset", "-c", "0", *([DIECAST, "frame", "--tdf", str(tdf), "--cores", "1", *grain, "--"] if tdf else []), *command]
        began = time.monotonic()
        child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            out, err = child.communicate(timeout=(60 + o.seconds * 3) * max(tdf, 1))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            err += "\nit hung"
        took = time.monotonic() - began
        lines = err.splitlines()
        for where, _, names in os.walk(f"{folder}/log"):
            for file in sorted(names):
                lines += open(f"{where}/{file}", errors="replace").read().splitlines()
        with open(f"{o.out}/{name}-{tdf or 'native'}.log", "w") as log:
            log.write(out + "\n".join(lines) + "\n")
        plain = [line.replace(folder, "") for line in lines]
    found = {"status": child.returncode, "took_s": round(took, 1), "log": plain}
    try:
        found["rate"], found["p50_ms"], found["p99_ms"], found["bad"] = read(out)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        found["bad"] = f"status {child.returncode}, no figures ({error}): {(out + err).strip()[-300:]}"
    return found


def shape(line):
    """A line of a log without what differs between any two runs."""
    line = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+", "#", line.lower())
    return re.sub(r"\s+", " ", re.sub(r"\b(mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\b", "", line)).strip()


def judge(native, framed):
    """Lines that only the frame's log has, and why the server is not fine in a frame."""
    known = {shape(line) for line in native["log"]}
    new = {shape(line): line for line in framed["log"] if shape(line) not in known}
    errors = [line for line in new.values() if ERROR.search(line) and not any(known in line for known in EXPLAINED)]
    why = [framed["bad"]] if framed["bad"] else []
    if "rate" in framed and "rate" in native and not 1 / RATE_FACTOR <= framed["rate"] / native["rate"] <= RATE_FACTOR:
        why.append(f"the rate is {framed['rate'] / native['rate']:.2f} of the native one")
    why += [f"only in a frame: {line.strip()[:200]}" for line in errors[:5]]
    return list(new.values()), errors, why


def cell(run):
    ms = lambda key: "" if run.get(key) is None else f"{run[key]:.3g}"
    return f"{run['rate']:.0f}/s", ms("p50_ms"), ms("p99_ms")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--server", action="append", choices=[s[0] for s in SERVERS], help="only this (several times)")
    a.add_argument("--seconds", type=int, default=5, help="of load, in the time that the server sees")
    a.add_argument("--grain", help="of the frames, as 2ms: LIMITS.md says which servers want a longer one")
    a.add_argument("--install", action="store_true", help="apt-get install what is missing")
    a.add_argument("--out", default=f"out/bench-servers-{int(time.time())}")
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    results = []
    print("| server | TDF | native rate | p50 ms | p99 ms | in a frame | p50 ms | p99 ms | new lines (errors) | |\n|" + "---|" * 10, flush=True)
    for name, packages, programs, tdf, script, read in SERVERS:
        if o.server and name not in o.server:
            continue
        if missing(programs) and o.install:
            install(packages)
        if lacks := missing(programs):
            print(f"| {name} | | skipped: no {', '.join(lacks)} (apt-get install {packages}) |", flush=True)
            results.append({"server": name, "skipped": lacks})
            continue
        native = once(name, script, read, 0, o)
        if native["bad"]:
            print(f"| {name} | | skipped: natively {native['bad']} |", flush=True)
            results.append({"server": name, "skipped": native["bad"]})
            continue
        framed = once(name, script, read, tdf, o)
        new, errors, why = judge(native, framed)
        told = cell(framed) if "rate" in framed else ("", "", "")
        print(f"| {name} | {tdf} | {' | '.join(cell(native))} | {' | '.join(told)} | {len(new)} ({len(errors)}) | {'; '.join(why) or 'fine'} |", flush=True)
        results.append({"server": name, "tdf": tdf, "native": native, "framed": framed, "new_lines": new, "errors": errors, "why": why})
    with open(f"{o.out}/bench-servers.json", "w") as out:
        json.dump(results, out, indent=1)
    ran = [r for r in results if "why" in r]
    print(f"\nRates and latencies of frames are in virtual time. {sum(not r['why'] for r in ran)} of {len(ran)} fine; "
          f"logs and JSON in {o.out}")
    return 3 if not ran else 1 if any(r["why"] for r in ran) else 0


if __name__ == "__main__":
    sys.exit(main())
