//! Files that are made from code, so that they can't drift from it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Path and text of every generated file.
fn files() -> Vec<(&'static str, String)> {
    vec![
        ("LIMITS.md", limits()),
        ("docs/reference/catalog.schema.json", format!("{:#}\n", diecast_core_experiment::json_schema())),
        ("docs/reference/journal.md", journal()),
    ]
}

/// Writes those that differ.
pub fn write(root: &Path) -> Result<()> {
    for (path, text) in stale(root) {
        let path = root.join(path);
        let folder = path.parent().unwrap_or(root);
        fs::create_dir_all(folder).with_context(|| format!("{} can't be made", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("{} can't be written", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Fails when one differs.
pub fn check(root: &Path) -> Result<()> {
    let stale: Vec<&str> = stale(root).into_iter().map(|(path, _)| path).collect();
    if !stale.is_empty() {
        bail!("stale: {}; run `cargo xtask gen`", stale.join(", "));
    }
    Ok(())
}

fn stale(root: &Path) -> Vec<(&'static str, String)> {
    let differs = |path: &str, text: &str| fs::read_to_string(root.join(path)).ok().as_deref() != Some(text);
    files().into_iter().filter(|(path, text)| differs(path, text)).collect()
}

/// Which files of /proc and /sys tell a frame's time, and which don't.
const PROC: &str = "\
## Signals

- SIGSYS and SIGTRAP that the program blocks are held by the blob, since a SIGSYS that the kernel held back would kill \
at the next trapped call. rt_sigpending, rt_sigtimedwait, /proc/PID/status and the signal itself, once unblocked, know \
of it, and a signalfd of no other signals, which is a socket: fstat says so, each read gives one record, a child and the \
next image that have the descriptor see nothing of their own, and no more than four are kept. A signalfd of other \
signals too never shows these two.
- SIGSYS that a handler writes into the mask of its ucontext, or a tracer with PTRACE_SETSIGMASK, kills at the next \
trapped call; of SIGTRAP so blocked the meter's hits wait.
- A trapped call and a hit of the meter each build a signal's frame where the kernel builds them: on the thread's \
alternate stack if it has one, else below its stack pointer. With AVX-512 that takes 3.2 KiB of what is left there, and up \
to 6.5 KiB where a hit meets a call that is being served. Threads and handlers that leave less get SIGSEGV.
- So an alternate stack of 11 KiB or more (smaller ones are replaced) that was unmapped while it was set kills at the next \
trapped call or hit, not at the next handler; one that two threads have set at once is overwritten without a handler too. With AMX's tiles in use a frame is 11.4 KiB: \
alternate stacks from 11 to 24 KiB are too small then.
- SIGTRAP that comes to a thread while a hit of the meter waits there is lost, as is one of two natively, unless a thread of the \
same process sent it by tkill or tgkill.
- munmap, mprotect and MAP_FIXED over what is the frame's, the vDSO included, fail with EPERM where the kernel has mseal \
(Linux 6.10), for all of a wider range too. Elsewhere they kill.

## The time stamp counter

rdtsc and rdtscp tell real time unless `--tsc trap` is given. Then they follow the node's CLOCK_MONOTONIC_RAW at the \
processor's frequency, by a SIGSEGV each; what is said of SIGSYS and SIGTRAP above holds for SIGSEGV too.

- A handler of the program's for SIGSEGV runs on the thread's alternate stack whether it asked for that or not, and on \
one of the blob's where the program's is smaller than 11 KiB.
- Each reading is a SIGSEGV that a debugger sees (gdb: `handle SIGSEGV nostop noprint pass`).
- Real all the same: rdpmc, tpause, umwait and mwaitx, the frequency that cpuid tells, and PR_SET_TSC of a program that \
asks for no counter in a frame without `--tsc trap`, whose clocks are then read by system calls.

## Files of /proc

In virtual time, wherever /proc is and by whatever path: uptime, loadavg, stat (btime, and the lines of cores), \
PID/stat (utime, stime, cutime, cstime, starttime), PID/schedstat, and the same of threads. PID/status and PID/stat show \
SIGSYS, SIGTRAP and seccomp filters as the program left them, and the node's cores, its one memory node, and real-time \
policies as threads asked for them: those of another process where ptrace(2) would be allowed, else the host's. The core on \
which another thread last ran is one that it may run on.

- The descriptor is one of a memory file: fstat and fstatfs say so, and so does its link in /proc/PID/fd. Its text is that \
of the open, or of the last time that lseek went to its beginning; pread does not make it anew. A process whose \
RLIMIT_FSIZE is smaller than the text, or that opens for writing too, gets the kernel's file.
- Cores of a metered node did what the ledger was charged, each an equal part; the kernel's part of it is sampled \
at hits, which a thread that pays before its waits has few of. Without a meter they did what the host's did. Interrupts, context switches and procs_running are the host's.
- What packets interrupt counts as CPU time of the node's threads where the host's kernel does so, in labs: as a mean that \
forgets half in 17 s of real time, spread evenly over all threads. Work for packets is in no row of /proc/stat.
- Of a metered program the kernel's ticks tell which part of its CPU time is system time, as natively. Half of what hits cost \
is taken from that, the rest from both modes alike. A loop in user mode at TDF 10 is shown 0 to 6 % of system time, one with \
16 % of it 12 to 22.
- Load averages begin at zero and count the node's threads.
- Another process's dispositions of the two signals are known where ptrace(2) would be allowed, which of them it blocks is \
not. NoNewPrivs is 1 in the frame of an ordinary user.
- Real: PID/sched, PID/limits, fdinfo of timerfds, pressure, diskstats, timer_list, \
net/tcp and its kin, sysvipc, keys. Of processes outside the frame only the start is translated.
";

const FILES: &str = "
## Times of files

stat and its kin, and what sets times, are in virtual time for what is newer than the lab; older files keep their times. What \
is set reads back as it was set, to the nanosecond where the TDF is at least 1, and to the file system's own step.

- Outside of the lab a file has the host's instant: one that a node set to an hour ahead at TDF 10 is ten hours ahead there.
- A time that lies ahead moves when the lab is re-timed or paused before it has come. More than 417 days of real time ahead \
it moves by as much as the clock of that day, so that file systems do not cut it.
- A node's clock that is stepped takes the times of all files with it that are newer than the lab. On a clock that is ahead of \
the host's from the start, times between the two can't be set: they become the first that it showed.
- utime, utimes and futimesat are served by utimensat; after a seccomp filter of the program's own by themselves, rounded up \
to real microseconds or seconds.
- Real: times in answers of a FUSE server and in what NFS servers say, btrfs's and XFS's own ioctls, quota files.
";

/// What an exec needs in a frame, and what can't be executed.
const EXECS: &str = "
## Starting programs

- The blob and its pages take 1644 KiB of a program's address space and 44 KiB of its data. Where RLIMIT_AS or RLIMIT_DATA \
leaves less, it is killed at its exec and the run says so: a small static program needs limits of 2632 KiB (natively 988) \
and 228 KiB (184).
- An exec needs no stack, whatever RLIMIT_STACK is.
- The node's memory is lent to a process by a descriptor for the length of its exec. Where its table is full its limit is \
raised meanwhile; where the hard limit is met too and CAP_SYS_RESOURCE is missing, execve fails with EMFILE. The descriptor \
stays in a table that a process shares (CLONE_FILES) with others than its parent, or has filters of its own beside.
- A program that may be executed but not read (mode 0711) fails with EACCES in the frame of an ordinary user, and is killed \
where that holds for its interpreter only: Linux lets nobody without CAP_SYS_PTRACE look into it.
";

/// What a single frame leaves out.
const SINGLE: &str = "
## A single frame

`diecast frame` runs a command on the host's own network and disks, which are in real time. Nothing judges the run: neither \
the host's speed nor how late the command was is told, and there is no verdict; `--stats` prints what the envelope and the \
meter counted. What a run with a verdict needs is a lab, of one node if need be (examples/one-server.yaml). What no hit catches, \
above all the begin and end of short processes, is charged within some 50 ms of CPU time, by what the kernel says of the command's \
descendants: it shows what a process has of children that have ended in ticks of 10 ms. What children of one that ignores \
SIGCHLD use is in nobody's account: beside many of these little is charged to anybody of what no hit catches. Sleeps that make \
it cold are charged as they are: what a lab learns of it from its packets' senders is not known. Large programs that are \
still warming up show it most: a JVM server at TDF 10 answered 0.43 to 0.78 of its native rate in its first five seconds with \
the grain of 100 us, 0.81 to 0.91 once it was compiled. What a program's own clock says within a slice is right to two grains \
only. Three etcd on one core had 0.9 of their native rate at TDF 10, where a request is charged 1.4 ms of CPU time (natively \
1.3), and 0.39 to 0.83 at TDF 20, where it is charged up to 2.2 (0.9 to 1.0 with --grain 500us, one run).

Where each thread has an event (`--hits threads`, kernels before 6.18) a parent and a child that it forked, taking turns on one \
core, are charged far too little: what a switch to a metered thread costs is taken off, and between these it costs nothing.

Where hits come from clocks of cores, each frame and each lab has a clock of its own on every core: several at a time interrupt \
each other's programs (2 to 3 us a tick, which is charged as their work; a tick each 185 us at the grain of 100 us). A core that \
goes offline, and the host's sleep, end the clock of that core: busy threads that stay on it are no more hit, which a lab reports. A call that uses the CPU for long in the kernel (sendfile of \
gigabytes) is charged at its end, in one sleep, and a lab says of its thread that it had no meter.

When the command ends, what it left in the background is killed, and a line says so: its calls would have nobody to serve \
them. Have the command wait for it.

";

const EDGES: &str = "
## Programs at the edge of what Linux allows

- The stack that a trapped call and a hit need (\"Signals\") is missing in threads of 16 KiB that use 6 KiB themselves, and \
in coroutines on less than 4 KiB, under a meter 7: they end by SIGSEGV. Goroutines, and children of a C library's \
posix_spawn, have enough.
- A thread that wakes up while a lighter one (a higher nice value, an ordinary one beside SCHED_FIFO) has the core waits for up to \
a grain, where Linux would let it have the core at once, and the lighter one has up to a quarter less beside a thread that sleeps \
every few grains. Weights count by clocks of cores only: where hits come from events of \
threads, all busy threads have equal parts. Of two threads of SCHED_FIFO the priorities mean nothing, nor do weights of control \
groups that a program makes.
- What a program's own clock says is early by what its thread has done since its last hit, and after a sleep by its way to a \
core (13 to 16 us in virtual machines), but for a TDF-th of both: a client that measures finds answers some 20 us too fast. What it \
sends leaves in time.
- A thread looks for more to do before the original's would, by what it owes for its last slice, and finds less: a quarter of a \
slice where its packets tell what it uses and it looks by epoll_wait, epoll_pwait2, or by epoll_pwait, poll, ppoll, select and \
pselect6 with a timeout or a mask; up to four slices where it looks by these without, by poll and epoll_pwait with 0, by the read \
itself, or in a node where threads have weights or cores of their own. Then a level-triggered epoll tells of one request where the \
original's tells of several, some of which overtake others.
- A node at work is charged an interrupt for each packet that comes while it is at no other, as by a NIC that does not moderate \
its interrupts, of the cost that this host's have between its cores; a NIC that moderates them has fewer.
- What a thread hands on within its node is held by the wake-up that goes with it, with `--hits cores` and BPF only. Who finds it \
without having slept (it spins, or was still at work) goes on from there at once, and one that was on its way to sleep too; a thread \
that comes to a node from elsewhere (setns) is known from its next sleep on. An event loop to which a worker hands a result answers \
whatever comes meanwhile no earlier than that worker has come, where the original's may answer it before. Where what is woken sends \
nothing itself (it writes a file), its clock may be 3.8 grains early instead of 1.85. For half a second after a change of rate \
hand-overs are told by the rate before.
- A deadline that a program reckons from its clock amid a slice is early by as much, so a wait until then ends early (a futex, a \
timer). A relative sleep begins when the thread has paid; the timeout of a look for more when it was asked for, since most \
event loops reckon it from their clock right before; where one reckons from what its clock said before its work, or means a \
constant, it ends earlier than the original's by what the thread owed.
- What packets took off a thread that ends before its next hit stays in the CPU time that its process sees (CLOCK_PROCESS_CPUTIME_ID, \
getrusage), some 10 to 25 us of each such thread; it is charged to nobody.
- A tracer that lets go of a program (strace -p) leaves it the CPU time of the meantime to pay for at its next hit.
- Refused: listeners of seccomp (EBUSY, since the frame's is there); 32-bit programs; seccomp's strict mode (EINVAL); \
system calls by `int $0x80`, which end the program by SIGSYS; PTRACE_O_SUSPEND_SECCOMP, by the kernel, to tracers in the frame; \
all programs on a kernel that was booted with vdso=0. A trapped call with a stack pointer that points nowhere ends the program. Protection keys and \
shadow stacks are untested, for want of a processor.
- Pid namespaces that a program makes itself: threads of two of them with the same number share what is known of a thread's \
CPU time, so two such containers in one node or frame are charged each other's. One alone is right.
- CLOCK_PROCESS_CPUTIME_ID in a child of vfork shows its parent's CPU time, whose page it has, until its exec.
- pthread_cancel that meets a thread in the microsecond between a trapped call and the kernel's acts when that call ends (epoll_wait without a \
timeout too), where the C library looks at the instruction pointer, as musl and glibc from 2.41 on do.
- While a hit of one thread looks at its schedstat, a child that another thread forks gets that descriptor too, until its \
exec (2 of 600 forks under six busy threads).
- A process that may map no memory (mlockall with MCL_FUTURE at its RLIMIT_MEMLOCK) reads /proc in real time.
- SO_TIMESTAMP that another process set on a shared socket: the stamps are real time.
";

/// What of the reference's time surfaces is left as it is, in its order.
const REAL: &str = "
## Surfaces that stay real

Where a program meets real time all the same, and why.

- Instructions and memory, where nothing can trap: the counters named above, loops and threads that count, port I/O (iopl, \
ioperm), counters that devices map, and the kernel's own vDSO and vvar pages, which the blob reads too: whoever finds them \
in /proc/PID/maps reads the host's clocks, whoever unmaps or moves them reads none.
- Clock ids: CLOCK_AUX (16 to 23, off in most kernels) and the clocks of devices (PTP), of which the node has none of its \
own. The alarm clocks need the host to have an RTC.
- Steps of a node's clock: TFD_TIMER_CANCEL_ON_SET gives no ECANCELED, since that is the kernel's, which knows the host's \
clock only; it gives one when the host's is set. Waits and timers for an instant of CLOCK_REALTIME or CLOCK_TAI follow a \
step within a few ms of real time, but for timers of a process that is traced, those after the 1024th, and a timerfd that \
another process sets, or hands over in a message (SCM_RIGHTS), in that very moment. A process with such timers of \
timer_create is stopped for it: what is said of a pause below of calls that end with EINTR holds. A change of the offset of \
TAI alone moves nothing that is pending.
- Rates of a node's clock that its own programs change (adjtimex): pending waits are not early by it, but may be late by as \
much as the clock gained; pending timers end by the rates before. `diecast clock --drift` moves both.
- Timers: of a process that has made more than 1024 with timer_create, the later ones of CPU time come early by the \
meter's share (no room for them in its page), as do those that a child of vfork makes (its ITIMER_PROF fires a second late \
if it has no exec), and where /proc can't be read the later ones count as of CLOCK_MONOTONIC. Of CPU timers in a metered \
node the overrun is 0: of ten periods that passed while the signal was blocked the program is told one, where Linux says \
that there were nine more. One on the clock of another process is looked at when its owner uses CPU time; while that \
sleeps, it fires after twice its span and a second of the other's real CPU time, which the meter's is part of (100 ms at \
speed 1: 1.2 s), and a span of ITIMER_PROF or ITIMER_VIRTUAL is up to a tick of the kernel's longer for each exec that it \
outlives. Keys end by whole real seconds, and at a pause run on. RLIMIT_RTTIME is kept and never met, as real-time \
policies change nothing. Without a meter RLIMIT_CPU is raised by a real second after each SIGXCPU; with one, a limit that \
`diecast` itself was started with counts half, less a second. A slice set with sched_setattr is the host's.
- Sockets, for what is rarely used or lies where nothing looks: SO_BUSY_POLL, SCM_TXTIME, the device's stamp of \
SO_TIMESTAMPING and its statistics, stamps of TCP_ZEROCOPY_RECEIVE and of packet rings, TCP_TIMESTAMP and the stamps in \
segments (a peer sees the host's ms), TCP_CC_INFO of others than BBR, all of SCTP, TIPC and MPTCP's own.
- ioctls and devices, whose hardware is real: a node has /dev/null, zero, full, random, urandom, tty and pts, a single frame \
the host's (rtc, ptp, pps, hpet, watchdog, input, dri, kvm and so on, kmsg). Real in both: VTIME and closing_wait of \
terminals, ntsync, SIOCSHWTSTAMP, SIOCETHTOOL, EPIOCSPARAMS, PPPIOCGIDLE.
- Files, besides those above: PID/timerslack_ns (the frame's own), timens_offsets, arch_status, mountstats; schedstat, \
interrupts, softirqs, vmstat, driver/rtc, mdstat, fs, net/nf_conntrack and the times among settings in /proc/sys; all of \
/sys, tracefs and debugfs; of cgroups cpu.stat, cpuacct.* and *.pressure. They are opened by name, and each would need a \
text of its own.
- Netlink, whose messages no register shows: lifetimes of addresses, routes and neighbours, qdiscs, filters and nftables \
that a program configures (netem, tbf, fq, limits, timeouts: give them times by the TDF), sock_diag, conntrack, xfrm, WireGuard, \
taskstats, audit, the connector of processes.
- siginfo: si_utime and si_stime of SIGCHLD, and what a signalfd shows of them, which only a wrapper around each of \
its handlers could change. Leases are broken after the host's lease-break-time.
- The kernel's own network timers without a sysctl, an upper limit or a hook: TIME_WAIT (60 s), retransmission timeouts above \
120 s, orphans, PAWS, initial sequence numbers, and those of bridges, bonds, VXLAN and WireGuard. In nodes those of \
host/net/src/sysctl.rs are stretched (not ip_vs, collectors of routes and peers, conntrack's of SCTP, GRE and DCCP), in a single \
frame none.
- Else: what bpf programs read and bpf(2) tells, acct, syslog, times in mount options, %t of core_pattern, the kernel's own housekeeping \
(write-back, key and memory collectors), delays and guest times in PID/stat, quotactl, a timer slack that is set for the next \
image, retire times of packet rings, breaks of terminals (TCSBRKP), timeouts of autofs, NBD and vhost, RDPRU, SGX and traces of \
the processor, messages of NFLOG, NFQUEUE, PSAMPLE, drop monitors, Open vSwitch, MACsec and devlink, times in what \
comes from outside the lab, and all that other containers and the host see of a node.
";

const PAUSED: &str = "\
## A paused lab

- Calls that Linux ends with EINTR when a process is stopped and continued (signal(7)) end so at a pause, where the blob \
does not serve them: epoll_pwait without a timeout, reads of inotify descriptors, semop, and calls on sockets with \
SO_RCVTIMEO or SO_SNDTIMEO, whose time begins anew; a close that lingers (SO_LINGER) ends.
- Linux's TCP in a container does not stand still. What is on its way at the pause is retransmitted by the host's clock, \
at growing distances, until tcp_retries2 ends the connection with ETIMEDOUT: after minutes of the host's time. \
Keep-alive, FIN_WAIT_2 and TIME_WAIT run on too. What comes of it is Linux's own: after the pause the congestion window is \
that after a timeout until the duplicates that the other end got have shown it to be none.
- The pause is no round trip of a segment that was retransmitted during it: the timestamp that its acknowledgement echoes is \
zero in the frame that the node gets (not in records). What was on its way alone is such a segment, unless the pause was \
shorter than its timeout. Of several the kernel retransmits only the first during a pause, and where the others are \
acknowledged before it has come to them, it takes the pause for their round trip: the estimate loses an eighth of that \
with each acknowledgement, and is right again after some 70 of them where the pause took half a minute, 90 where ten minutes.
- io_getevents and io_pgetevents may end with fewer events than their minimum.
- A tick of a periodic timer with SIGEV_THREAD_ID whose signal is blocked and waits at the pause is lost from Linux 6.13 on.
- A timerfd that is in a message on its way between two processes (SCM_RIGHTS) runs on.
- A process that has made more than 1024 timers with timer_create can't be paused; neither can nodes without an envelope \
(modes naive and native), nor can a lab be paused more than 31 times.

## A re-timed lab

What is said of a pause holds: the lab stands still for some milliseconds. It can be paused and re-timed 31 times in all, \
in mode diecast only. What the host can carry is looked at, the scale factor is not.

- Round trips that Linux's TCP has measured are of the old rate until the next ones, of some 30 segments, have come: after \
a rise of the TDF by so much that a round trip takes longer than the old one and its shortest timeout together, the first \
packets are sent twice. The shortest retransmission timeout follows on open connections too, by routes to both halves of \
each subnet, which the node's programs see.
- Kernel timers that run at the change keep their real instants: retransmissions, keep-alive and TCP_USER_TIMEOUT of an \
idle or unanswered connection, FIN_WAIT_2, TIME_WAIT, fragments. What has passed counts at the new rate, so a keep-alive \
may come early after a fall of the TDF, by what had passed.
- Times of sockets follow (SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_LINGER2, \
TCP_DEFER_ACCEPT, TCP_USER_TIMEOUT), but not those of connections that nobody has accepted yet, of sockets in messages on \
their way (SCM_RIGHTS), and of sockets that are closed. What the kernel's range cut before the first change stays cut. SO_MAX_PACING_RATE, TCP_TX_DELAY, \
TCP_RTO_MIN_US, TCP_DELACK_MAX_US, TCP_RTO_MAX_MS, the connect timeout of vsocks and the ends of keys stay as they were set.
- Sysctls of the network that a program has changed are left as they are.
- A thread that sleeps for its CPU time at the change sleeps out that grain (before a wait \
up to four) at the old rate: after a fall of the TDF up to that times the old TDF too long.
- mq_timedsend, mq_timedreceive, futex_waitv and FUTEX_LOCK_PI that the kernel restarts by itself after a handler with \
SA_RESTART end late, never early, where the TDF fell during that handler.
- A flow of datagrams through the gateway ends after a minute by the TDF of the start.
- Lateness in results is told by the lowest TDF that the lab has had, the advice to raise the TDF counts from the first.
";

const SITES: &str = "
## Programs that look at their own code

Where a program has made a call that carries time once (`--call-sites N|never`: N times, or it stays), the five bytes of the `mov` before its `syscall` \
become a jump, in the process's own copy of that page: Linux 6.11 or later, private mappings of files only, not in processes \
that are traced at their exec.

- Go's dump of its threads at a crash shows one that is in a trapped call as `runtime: unknown pc`, with the words of its \
stack; unwinders that read unwind tables (C, C++, gdb) find their way through.
- Programs made by Go's linker are left as they are. Go code that a program of another linker loads (c-shared) is taken for C: \
`--call-sites never` has its profiler see what is there, and calls from goroutines whose stack is all but full overwrite what \
lies below.
- A program that reads its instructions sees it, and so does a debugger that is attached later. /proc/PID/maps shows a page \
more near the code, and the mapping of the code in parts.
- What breaks at one of these instructions meets it in the blob: a signal there has a program counter that no unwinder \
knows, for four instructions. A thread that is cancelled at just this point ends without its destructors.
";

const TRACERS: &str = "
## Debuggers

strace and gdb work inside a frame, and what they start is in it too. gdb needs `-x docs/diecast.gdb`, which lets SIGSYS pass: \
each trapped call is one. Where a program that is traced already execs, its first instructions (99 bytes) are the frame's \
until it goes on from its first one: `starti` shows them, and a breakpoint there is lost.

- A process that is traced has no CPU meter, and the run says so: it runs at the host's speed. One that is attached to loses \
its meter at once. Where each thread has an event (`--hits threads`) it does within a second, until then each hit is a SIGTRAP that \
its tracer sees, and its tracer and all that both have forked without an exec lose theirs too.
- A trapped call is a SIGSYS, then the calls by which it is served. Each image begins with a call of execve whose path is no \
address, and some twenty calls by which the blob is mapped: they are the frame's.
- A tracer that does not stop at execs (neither PTRACE_O_TRACEEXEC nor the SIGTRAP of old) kills what it traces. One that is \
traced itself can't start programs: execve fails with EPERM. So it does where one traces the program and `diecast` alike \
(`strace -f diecast frame`). Where the kernel lets only tracers write to /proc/PID/mem it is killed at its exec.
";

const OFFLOAD: &str = "
## Offload

With `offload: true` in a topology, frames that are due together come to a node merged, as from a NIC with GRO, while no \
packet socket is open in its network namespace and no `diecast capture` runs.

- What looks at a node's frames without a packet socket sees merged ones: programs of tc and XDP, netfilter, and raw IP \
sockets. Counters of the NIC inside the node (`ip -s link`) count a merged frame once, those of results every frame of the \
wire. TCP acknowledges a merged frame once, as behind any NIC with GRO.
- There is a look for packet sockets before each merged frame is handed over: one that is opened during that write, some \
20 µs, can see that frame.
- What merges depends on what is due at once in real time. A fast link at a low TDF merges more than the same link at a high \
one, and the node's work per packet differs by that.
";

const NETWORK: &str = "
## The network

- Of what a frame says of its sender only the MAC is checked: an IP source that is another's passes.
- The emulator answers ARP and neighbour solicitations itself, from the plan's addresses, and swallows what would teach \
others: gratuitous ARP and all answers, neighbour advertisements, IGMP, MLD and router discovery. So an address that moves \
between nodes or is added to one (VRRP, keepalived) is found by nobody; a virtual MAC is no source that passes. Multicast \
reaches every node of the segment.
- Linux leaves an acknowledgement to an answer for 40 ms of real time, whatever the TDF. The emulator keeps Linux's rules \
for this once more, in virtual time, and has empty segments wait at the NIC (ARCHITECTURE, \"One acknowledgement\"): captures \
inside the sender show them earlier, or where none leaves, and its kernel has sent each. It waits 40 ms also where Linux \
would adapt to longer round trips, and knows neither fragments nor IPv6 extension headers. Where a program has not read \
data within 40 ms of real time, the acknowledgement that leaves then waits only if the connection answers. \
A program that asks for acknowledgements (TCP_QUICKACK) gets them where packets tell their senders (`diecast doctor`). At \
a TDF below 1 they are late.
- TCP of nodes asks for ECN where a link of the catalog, or a fault, has `ecn: true`. One that `diecast link set` brings \
to other labs marks only what asks by itself.
";

fn limits() -> String {
    let calls = diecast_core_syscalls::limits_table();
    format!(
        "# Limits\n\n\
         Generated by `cargo xtask gen` from `core/syscalls` and `xtask/src/generate.rs`; do not edit.\n\n\
         What happens inside a frame to each system call that carries time.\n\
         A call that is neither here nor below passes untouched and carries no time.\n\n{calls}\n{PROC}{FILES}{REAL}{EXECS}{EDGES}{SINGLE}{PAUSED}{SITES}{TRACERS}{OFFLOAD}{NETWORK}"
    )
}

fn journal() -> String {
    let version = diecast_core_journal::JOURNAL_VERSION;
    let mut text = format!(
        "# The journal, version {version}\n\n\
         Generated by `cargo xtask gen` from `core/journal`; do not edit.\n\n\
         A run writes `journal.jsonl` as it goes: one JSON object a line, the header first.\n\
         Keys that begin with `v_` are virtual, keys that begin with `r_` are real, both in nanoseconds.\n\
         CPU times are real CPU time.\n\
         The last line of a killed run may be torn; readers leave it out.\n\
         The meaning of each key stands in `core/journal/src/record.rs`.\n"
    );
    for record in diecast_core_journal::examples() {
        let line = diecast_core_journal::to_line(&record);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let kind = value["record"].as_str().unwrap_or_default();
        text += &format!("\n## `{kind}`\n\n```json\n{}\n```\n", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_file_is_found_and_mended() {
        let root = std::env::temp_dir().join(format!("diecast-xtask-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        assert!(check(&root).is_err(), "nothing is there yet");
        write(&root).unwrap();
        check(&root).unwrap();
        fs::write(root.join("LIMITS.md"), "# No limits\n").unwrap();
        let error = check(&root).unwrap_err().to_string();
        assert_eq!(error, "stale: LIMITS.md; run `cargo xtask gen`");
        fs::remove_dir_all(&root).unwrap();
    }
}
