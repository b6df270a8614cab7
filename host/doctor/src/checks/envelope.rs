//! Can a program be put in a frame?

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use diecast_core_vtime::Tdf;
use diecast_host_supervisor::{CpuConfig, LabFrame, Meters, NodeFrame, Supervisor};
use diecast_host_sys::ptrace::{self, Wait};
use diecast_host_sys::vdso::KernelVdso;
use diecast_host_sys::{Tid, process, seccomp, socket};

use super::cpu;
use super::{on_thread, root_or};
use crate::facts::{read, read_number, status_field};
use crate::report::{Check, Need, Part, Subject};
use crate::sys;
use crate::trial;

/// How long one answer of a child may take before the trial gives up.
const ANSWER_MS: i32 = 1000;
/// Virtual time that the program of the frame trial sleeps, as `sleep` takes it.
const SLEEP_S: &str = "0.02";
const SLEEP_NS: u64 = 20_000_000;
const TRIAL_TDF: &str = "5";

const fn subject(name: &'static str, need: Need) -> Subject {
    Subject { name, part: Part::Envelope, need }
}

pub(super) fn all() -> Vec<Check> {
    vec![
        architecture(),
        vdso(),
        notifications(),
        tracing(),
        whole_frame(),
        call_sites(),
        seal(),
        children(),
        io_uring(),
    ]
}

fn architecture() -> Check {
    let s = subject("architecture", Need::Frames);
    let machine = rustix::system::uname().machine().to_string_lossy().into_owned();
    match machine.as_str() {
        "x86_64" => s.ok(machine),
        _ => s.missing(machine, "the envelope is made of x86-64 code: nothing runs here", "use an x86-64 machine"),
    }
}

/// This process has a seccomp filter already: it may run in a frame, whose vDSO is ours and whose filter admits no
/// second listener.
fn has_filter() -> bool {
    read("/proc/self/status").is_some_and(|status| status_field(&status, "Seccomp") == Some("2"))
}

fn vdso() -> Check {
    let s = subject("kernel vDSO", Need::Frames);
    match KernelVdso::find() {
        Some(v) => s.ok(format!("clock_gettime at offset {:#x}", v.clock_gettime)),
        None => s.missing(
            "none in this process",
            "a frame's clocks are made from the kernel's own: no frame can be made",
            if has_filter() { "run diecast outside of frames" } else { "boot without vdso=0" },
        ),
    }
}

/// A seccomp filter (`struct sock_filter`s) that reports one system call and lets all others through.
fn reporting_filter() -> Vec<u8> {
    let instructions: [(u16, u8, u8, u32); 4] = [
        ((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        ((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, sys::REPORTED_CALL as u32),
        ((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        ((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let mut bytes = Vec::new();
    for (code, jt, jf, k) in instructions {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([jt, jf]);
        bytes.extend(k.to_ne_bytes());
    }
    bytes
}

fn readable(fd: &OwnedFd) -> io::Result<()> {
    let ready = process::poll(&[fd.as_raw_fd()], ANSWER_MS)?;
    if ready[0] & libc::POLLIN != 0 { Ok(()) } else { Err(io::Error::from(io::ErrorKind::TimedOut)) }
}

/// A child installs a filter, its call is reported here, it gets a descriptor, the call goes on.
fn report_one_call() -> Result<(), String> {
    let failed = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let (ours, theirs) = socket::pair().map_err(failed("making a socket"))?;
    let filter = reporting_filter();
    std::thread::scope(|scope| {
        let supervising = scope.spawn(|| -> Result<(), String> {
            readable(&ours).map_err(failed("waiting for the child"))?;
            let (_, listener) = socket::recv_fd(ours.as_fd(), &mut [0; 8]).map_err(failed("taking the listener"))?;
            let Some(listener) = listener else { return Ok(()) };
            readable(&listener).map_err(failed("waiting for a notification"))?;
            let notification = seccomp::receive(&listener).map_err(failed("taking a notification"))?;
            let added = seccomp::add_fd(&listener, &notification, &ours);
            seccomp::let_continue(&listener, &notification).map_err(failed("answering a notification"))?;
            added.map_err(failed("putting a descriptor into the caller"))?;
            Ok(())
        });
        let child = trial::child(move || {
            trial::at(1, process::set_parent_death_signal(libc::SIGKILL))?;
            trial::at(2, process::set_no_new_privs())?;
            let listener = trial::at(3, seccomp::install(&filter))?;
            trial::at(4, socket::send_fd(theirs.as_fd(), listener.as_fd(), b"L"))?;
            drop(listener);
            trial::at(5, sys::reported_call())
        });
        let supervised = supervising.join().unwrap_or_else(|_| Err("the trial panicked".to_owned()));
        // The child's failure is the cause where both failed.
        child.map_err(|f| match f.step {
            0 => format!("forking: {}", f.error),
            3 => format!("installing a filter: {}", f.error),
            5 => format!("a reported call failed: {}", f.error),
            _ => format!("preparing a child: {}", f.error),
        })?;
        supervised
    })
}

fn notifications() -> Check {
    let s = subject("seccomp notifications", Need::Frames);
    if let Err(why) = report_one_call() {
        let fix = if has_filter() {
            "this process has a filter already: run diecast outside of frames, containers and sandboxes that use one"
        } else {
            "use Linux 5.9 or later with CONFIG_SECCOMP_FILTER"
        };
        return s.missing(why, "the supervisor is not told of an exec: no program can be put in a frame", fix);
    }
    if sys::knows_seccomp_flags(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | 1 << 5) {
        return s.ok("a child's call was reported, it got a descriptor (ADDFD); WAIT_KILLABLE_RECV");
    }
    s.degraded(
        "a child's call was reported, it got a descriptor (ADDFD); no WAIT_KILLABLE_RECV",
        "a signal that arrives during an exec interrupts it and it is reported twice; programs with interval timers \
         start slowly",
        "use Linux 5.19 or later",
    )
}

/// A child is seized, stopped, read and let go while it waits.
fn trace_one_child() -> Result<(), String> {
    let failed = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let (ours, theirs) = socket::pair().map_err(failed("making a socket"))?;
    std::thread::scope(|scope| {
        let tracing = scope.spawn(|| -> Result<(), String> {
            let mut pid = [0; 4];
            let traced = readable(&ours)
                .and_then(|()| socket::recv_fd(ours.as_fd(), &mut pid))
                .map_err(failed("waiting for the child"))
                .and_then(|(n, _)| if n == 4 { trace(Tid(i32::from_ne_bytes(pid))) } else { Ok(()) });
            // It waits for this.
            socket::send(ours.as_fd(), b"G").map_err(failed("releasing the child"))?;
            traced
        });
        let child = trial::child(move || {
            trial::at(1, process::set_parent_death_signal(libc::SIGKILL))?;
            let pid = rustix::process::getpid().as_raw_pid().to_ne_bytes();
            trial::at(2, socket::send(theirs.as_fd(), &pid))?;
            trial::at(3, socket::recv_fd(theirs.as_fd(), &mut [0; 1]).map(|_| ()))
        });
        let traced = tracing.join().unwrap_or_else(|_| Err("the trial panicked".to_owned()));
        traced.and(child.map_err(|f| format!("the child failed at step {}: {}", f.step, f.error)))
    })
}

fn trace(tid: Tid) -> Result<(), String> {
    ptrace::seize(tid).map_err(|e| format!("seizing a child: {e}"))?;
    ptrace::interrupt(tid).map_err(|e| format!("stopping a child: {e}"))?;
    match ptrace::wait().map_err(|e| format!("waiting for a child to stop: {e}"))? {
        Wait::Gone => Err("the child died".to_owned()),
        Wait::Stopped(stopped) => {
            let read = stopped.regs().map(|_| ());
            stopped.detach(0).and(read).map_err(|e| format!("reading a child: {e}"))
        }
    }
}

fn tracing() -> Check {
    let s = subject("ptrace", Need::Frames);
    let scope = match read_number("/proc/sys/kernel/yama/ptrace_scope") {
        Some(n) => format!("yama scope {n}"),
        None => "no yama".to_owned(),
    };
    match trace_one_child() {
        Ok(()) => s.ok(format!("a child was seized, read and let go; {scope}")),
        Err(why) => s.missing(
            format!("{why}; {scope}"),
            "a new program image can't be prepared: no program can be put in a frame",
            "sysctl kernel.yama.ptrace_scope=1 (2 demands root), and allow ptrace in this container",
        ),
    }
}

/// What the frame trial saw.
struct Tried {
    real: Duration,
    framed: u64,
    outside: u64,
    problems: Vec<String>,
    exec_us: u64,
}

/// A sleeping program in a frame of its own, by the parts that `diecast frame` is made of.
fn try_frame(meters: Meters) -> io::Result<Tried> {
    let tdf: Tdf = TRIAL_TDF.parse().map_err(|_| io::Error::other("no TDF"))?;
    let metered = meters.any();
    let cpu = CpuConfig { grain_ns: 100_000, metered, count_kernel: meters.count_kernel(), ..CpuConfig::PLAIN };
    let lab = LabFrame::start(tdf);
    let node = NodeFrame::create(&lab, "doctor", cpu, Box::new(|| Ok(Vec::new())), None)?;
    if let Some(ticks) = meters.ticks() {
        node.hit_by(ticks);
    }
    let supervisor = Supervisor::start()?;
    let (ours, theirs) = socket::pair()?;
    let filter = diecast_host_supervisor::filter();
    let mut command = Command::new("sleep");
    command.arg(SLEEP_S).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    process::before_exec(&mut command, move || {
        process::set_parent_death_signal(libc::SIGKILL)?;
        let listener = seccomp::install_with_or_without_privilege(&filter)?;
        socket::send_fd(theirs.as_fd(), listener.as_fd(), b"L")?;
        drop(listener);
        socket::recv_fd(theirs.as_fd(), &mut [0; 1]).map(|_| ())
    });
    let began = Instant::now();
    let spawned = std::thread::scope(|scope| {
        scope.spawn(|| -> io::Result<()> {
            readable(&ours)?;
            if let (_, Some(listener)) = socket::recv_fd(ours.as_fd(), &mut [0; 8])? {
                supervisor.add(listener, Arc::clone(&node));
                socket::send(ours.as_fd(), b"G")?;
            }
            Ok(())
        });
        let spawned = command.spawn();
        // Its end of the socket goes with it, so that the thread does not wait for a child that failed.
        drop(command);
        spawned
    });
    let mut child = spawned?;
    // A wait for the child would take the stops that the supervisor waits for: only its end may be waited for.
    let end = process::pidfd(Tid(child.id() as i32))?;
    if readable(&end).is_err() {
        child.kill()?;
        readable(&end)?;
    }
    let status = child.wait()?;
    let real = began.elapsed();
    let counts = supervisor.counts();
    let framed = counts.execs.load(Ordering::Relaxed);
    let mut problems: Vec<String> =
        counts.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter().cloned().collect();
    if !status.success() {
        problems.push(format!("sleep ended with {status}"));
    }
    Ok(Tried {
        real,
        framed,
        outside: counts.outside.load(Ordering::Relaxed),
        problems,
        exec_us: counts.exec_ns.load(Ordering::Relaxed) / 1000 / framed.max(1),
    })
}

fn whole_frame() -> Check {
    let s = subject("a frame", Need::Frames);
    const LOST: &str = "neither 'diecast frame' nor labs work, although their parts may";
    let (meters, _) = cpu::meters();
    let metered = meters.any();
    let tried = match on_thread(move || try_frame(meters)) {
        Ok(tried) => tried,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return s.degraded("not tried: there is no program 'sleep' here", "whether frames work is not known", "");
        }
        Err(e) => return s.missing(e.to_string(), LOST, "see the other lines of the envelope"),
    };
    let tdf: u64 = TRIAL_TDF.parse().unwrap_or(1);
    let wanted = Duration::from_nanos(SLEEP_NS * tdf);
    let found = format!(
        "'sleep {SLEEP_S}' at TDF {TRIAL_TDF} took {:.0} ms ({}, exec {} us)",
        tried.real.as_secs_f64() * 1e3,
        if metered { "metered" } else { "no meter" },
        tried.exec_us,
    );
    if tried.framed != 1 || tried.outside != 0 || !tried.problems.is_empty() || tried.real < wanted {
        let why = tried.problems.join("; ");
        let found =
            if why.is_empty() { format!("{found}, {} execs framed", tried.framed) } else { format!("{found}; {why}") };
        return s.missing(found, LOST, "see the other lines of the envelope");
    }
    s.ok(found)
}

fn call_sites() -> Check {
    let s = subject("call sites", Need::Information);
    match sys::query_own_map() {
        Ok(()) => s.ok("the kernel tells what may be changed (PROCMAP_QUERY)"),
        Err(e) => s.missing(
            e.to_string(),
            "each call that carries time is a signal, about 1.5 us more; places that call often can't jump to the blob",
            "use Linux 6.11 or later, with /proc mounted",
        ),
    }
}

fn seal() -> Check {
    let s = subject("mseal", Need::Information);
    match trial::child(|| trial::at(1, sys::seal_a_page())) {
        Ok(()) => s.ok("a page was sealed"),
        Err(f) => s.missing(
            f.error.to_string(),
            "a program that unmaps memory it does not know can lose its clocks and die; ordinary programs don't",
            "use Linux 6.10 or later",
        ),
    }
}

fn children() -> Check {
    let s = subject("lists of children", Need::Accuracy);
    match std::fs::read_to_string("/proc/thread-self/children") {
        Ok(_) => s.ok("/proc/PID/task/TID/children"),
        Err(e) => s.missing(
            e.to_string(),
            "'diecast frame' loses sight of the processes it holds: their meters end, daemons stay behind (labs use \
             cgroups instead)",
            root_or("use a kernel with CONFIG_PROC_CHILDREN"),
        ),
    }
}

fn io_uring() -> Check {
    let s = subject("io_uring", Need::Information);
    let host = match read_number("/proc/sys/kernel/io_uring_disabled") {
        Some(0) => "allowed on this host",
        Some(1) => "privileged processes only on this host",
        Some(_) => "disabled on this host",
        None => "state unknown (before Linux 6.6)",
    };
    s.ok(format!("{host}; refused inside frames in any case: programs fall back to epoll"))
}
