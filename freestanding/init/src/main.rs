//! Process 1 of a container node.
//!
//! `runc` starts it with every capability and with a SOCK_SEQPACKET socket to `diecast` as its stdin.
//! It starts programs on request, reaps, reports, and dies with everything in its pid namespace as soon
//! as the socket closes: a node must not outlive its supervisor.
//!
//! Rules of this program:
//! * It stays outside of time frames, so it waits without timeouts only (`poll` with -1).
//! * It never trusts a descriptor number: the four that it owns are moved above [`sys::FIRST_FREE_FD`].
//! * Between fork and exec only the functions of [`child`] run: system calls on memory prepared before
//!   the fork, no allocation, no lock.
#![no_main]

mod child;
mod sys;

use child::{Failure, Prepared};
use diecast_init_protocol::{Reply, Request, Start};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::exit;

/// A started program. `exec_result` is open until its exec succeeded or failed.
struct Program {
    id: u32,
    exec_result: Option<OwnedFd>,
    names: child::Names,
}

struct Init {
    socket: OwnedFd,
    /// By pid.
    programs: BTreeMap<i32, Program>,
}

/// Entry point; the C library calls it, Rust's own start-up (which ignores SIGPIPE) is left out.
#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    match run() {
        Ok(never) => never,
        Err((what, error)) => {
            eprintln!("diecast-init: {what}: {error}");
            1
        }
    }
}

fn run() -> Result<i32, (&'static str, std::io::Error)> {
    let socket = sys::take_stdin().map_err(|e| ("take over the socket on stdin", e))?;
    let child_ended = sys::block_signals_and_watch_children().map_err(|e| ("create a signalfd", e))?;
    sys::set_name(c"diecast-init");
    // The network namespace may come from elsewhere, where nobody else brings loopback up.
    sys::loopback_up().map_err(|e| ("bring the loopback interface up", e))?;
    let mut init = Init { socket, programs: BTreeMap::new() };
    init.send(&Reply::Hello);
    loop {
        let mut watched = vec![init.socket.as_raw_fd(), child_ended.as_raw_fd()];
        let pending: Vec<i32> =
            init.programs.iter().filter(|(_, p)| p.exec_result.is_some()).map(|(pid, _)| *pid).collect();
        watched.extend(pending.iter().filter_map(|pid| init.programs[pid].exec_result.as_ref()).map(|f| f.as_raw_fd()));
        let ready = sys::wait_readable(&watched).map_err(|e| ("poll", e))?;
        for (pid, _) in pending.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            init.take_exec_result(*pid);
        }
        if ready[1] {
            sys::drain(&child_ended);
            init.reap();
        }
        if ready[0] {
            init.receive();
        }
    }
}

impl Init {
    fn receive(&mut self) {
        let (packet, fds) = match sys::receive(&self.socket) {
            Ok(Some(received)) => received,
            // The other end is closed: diecast is gone, and so are we.
            Ok(None) => sys::kill_all_and_exit(0),
            Err(error) => {
                eprintln!("diecast-init: receive: {error}");
                sys::kill_all_and_exit(1)
            }
        };
        match Request::decode(&packet) {
            Ok(Request::Start(start)) => self.start(start, fds),
            Ok(Request::Signal { id, signo, group }) => self.signal(id, signo, group),
            Ok(Request::Shutdown) => sys::kill_all_and_exit(0),
            Err(error) => {
                eprintln!("diecast-init: {error}");
                sys::kill_all_and_exit(1)
            }
        }
    }

    fn start(&mut self, start: Start, fds: Vec<OwnedFd>) {
        let id = start.id;
        let outcome = Prepared::new(start, fds).and_then(|prepared| prepared.fork());
        match outcome {
            Ok((pid, exec_result, names)) => {
                self.programs.insert(pid, Program { id, exec_result: Some(exec_result), names });
            }
            Err(Failure { errno, what }) => self.send(&Reply::Failed { id, errno, what }),
        }
    }

    fn signal(&mut self, id: u32, signo: i32, group: bool) {
        // A program that has just ended is no error: its exit report is on its way.
        if let Some((pid, _)) = self.programs.iter().find(|(_, p)| p.id == id) {
            sys::kill(if group { -pid } else { *pid }, signo);
        }
    }

    /// The child's end of the pipe was closed by a successful exec, or carries the reason of a failure.
    fn take_exec_result(&mut self, pid: i32) {
        let Some(program) = self.programs.get_mut(&pid) else { return };
        let Some(pipe) = program.exec_result.take() else { return };
        let id = program.id;
        match child::read_failure(&pipe, &program.names) {
            None => self.send(&Reply::Started { id, pid: pid as u32 }),
            Some(Failure { errno, what }) => {
                self.programs.remove(&pid);
                self.send(&Reply::Failed { id, errno, what });
            }
        }
    }

    fn reap(&mut self) {
        while let Some((pid, end)) = sys::reap_one() {
            // A program may end before its exec result was looked at.
            self.take_exec_result(pid);
            if let Some(Program { id, .. }) = self.programs.remove(&pid) {
                self.send(&match end {
                    sys::End::Code(code) => Reply::Exited { id, code },
                    sys::End::Signal(signo) => Reply::Killed { id, signo },
                });
            }
        }
    }

    fn send(&self, reply: &Reply) {
        if sys::send(&self.socket, &reply.encode()).is_err() {
            exit(0);
        }
    }
}
