//! The door of the envelope: a filter installed before rights are dropped, its listener handed over, and every
//! exec answered by a (here: always consenting) supervisor.

mod common;

use common::{State, node, run, wait_exit};
use diecast_host_node::{Envelope, Event, Exit, HandedOver, Handshake, Node, Output, ProgramSpec};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// linux/seccomp.h, for struct seccomp_notif (80 bytes) and struct seccomp_notif_resp (24 bytes).
const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;

/// Sends execve and execveat to the listener and lets everything else through.
fn filter(action: u32) -> Vec<u8> {
    // struct sock_filter: code, jump if true, jump if false, operand.
    let program: [(u16, u8, u8, u32); 5] = [
        (0x20, 0, 0, 0), // load the number of the call
        (0x15, 2, 0, libc::SYS_execve as u32),
        (0x15, 1, 0, libc::SYS_execveat as u32),
        (0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        (0x06, 0, 0, action),
    ];
    let bytes = |(code, jt, jf, k): (u16, u8, u8, u32)| [&code.to_ne_bytes()[..], &[jt, jf], &k.to_ne_bytes()].concat();
    program.into_iter().flat_map(bytes).collect()
}

/// Lets every notified call continue until the last process with the filter is gone; tells how many there were,
/// by the pid that made them.
fn consent(listener: &OwnedFd) -> Vec<u32> {
    let mut seen = Vec::new();
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on this stack.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1, "a notification or the end of all processes");
        if poll.revents & libc::POLLIN == 0 {
            return seen;
        }
        let mut notification = [0u64; 10];
        // SAFETY: the buffer has the size that the request number names.
        if unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, notification.as_mut_ptr()) } < 0 {
            continue;
        }
        seen.push(notification[1] as u32);
        // id, value, error (0), flags (1: continue).
        let response = [notification[0], 0, 1 << 32];
        // SAFETY: the buffer has the size that the request number names.
        unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, response.as_ptr()) };
    }
}

fn enveloped<const N: usize>(argv: [&str; N]) -> (ProgramSpec, Handshake) {
    let (handshake, childs) = Handshake::pair().unwrap();
    let mut spec = ProgramSpec::new(argv);
    spec.envelope = Some(Envelope { filter: filter(libc::SECCOMP_RET_USER_NOTIF), handshake: childs });
    (spec, handshake)
}

fn accept(handshake: Handshake) -> HandedOver {
    handshake.accept(Some(common::PATIENCE)).unwrap()
}

#[test]
fn every_exec_of_a_program_and_its_children_is_notified() {
    let Some(state) = State::new("envelope") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let script = "grep -E '^(CapEff|Seccomp)' /proc/self/status; ls /proc/self/fd; /bin/sh -c 'exec /bin/true'";
    let (spec, handshake) = enveloped(["sh", "-c", script]);
    let supervisor = std::thread::spawn(move || {
        let handed = accept(handshake);
        let (pid, pid_in_node) = (handed.pid, handed.pid_in_node);
        // Before the go, the child waits in init's image with all rights.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains(&format!("NSpid:\t{pid}\t{pid_in_node}\n")), "{status}");
        assert!(!status.contains("aa8425fb"), "{status}");
        (pid, consent(&handed.go().unwrap()))
    });
    let ran = run(&node, &state, spec);
    let (pid, seen) = supervisor.join().unwrap();
    assert_eq!(ran.exit, Exit::Code(0));
    assert_eq!(ran.output, "CapEff:\t00000000aa8425fb\nSeccomp:\t2\nSeccomp_filters:\t1\n0\n1\n2\n3\n");
    // sh, grep, ls, sh, true; the first by the child that shook hands.
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert_eq!(seen[0], pid);
}

#[test]
fn a_missing_program_costs_no_notification_and_is_reported() {
    let Some(state) = State::new("envelope-missing") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let (spec, handshake) = enveloped(["no-such-program"]);
    node.start_program(spec).unwrap();
    assert_eq!(consent(&accept(handshake).go().unwrap()), [0u32; 0]);
    let event = node.next_event(Some(common::PATIENCE)).unwrap();
    assert!(matches!(event, Some(Event::Failed { errno: libc::ENOENT, .. })), "{event:?}");
}

#[test]
fn without_a_supervisor_nothing_runs() {
    let Some(state) = State::new("envelope-alone") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let failed = |what: &str, node: &Node| match node.next_event(Some(common::PATIENCE)).unwrap() {
        Some(Event::Failed { what: found, .. }) => assert_eq!(found, what),
        other => panic!("{other:?}"),
    };
    // Nobody at the other end of the handshake.
    let (spec, handshake) = enveloped(["true"]);
    drop(handshake);
    node.start_program(spec).unwrap();
    failed("hand the seccomp listener over", &node);
    // Taken over, and then no go.
    let (spec, handshake) = enveloped(["true"]);
    node.start_program(spec).unwrap();
    drop(accept(handshake));
    failed("hand the seccomp listener over", &node);
    // A go, and then nobody answers: the exec fails with ENOSYS.
    let (spec, handshake) = enveloped(["true"]);
    node.start_program(spec).unwrap();
    drop(accept(handshake).go().unwrap());
    failed("execute 'true'", &node);
    // A filter that the kernel refuses: the handshake's other end is told by its closing.
    let (mut spec, handshake) = enveloped(["true"]);
    if let Some(envelope) = &mut spec.envelope {
        envelope.filter[0] = 0xff;
    }
    node.start_program(spec).unwrap();
    assert!(handshake.accept(Some(Duration::from_secs(5))).is_err());
    failed("install the seccomp filter", &node);
}

#[test]
fn an_exec_that_waits_for_its_supervisor_can_be_killed() {
    let Some(state) = State::new("envelope-kill") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let (mut spec, handshake) = enveloped(["true"]);
    spec.stdout = Output::Null;
    let program = node.start_program(spec).unwrap();
    let _listener = accept(handshake).go().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    node.signal_program(program, libc::SIGKILL).unwrap();
    assert_eq!(wait_exit(&node, program), Exit::Signal(libc::SIGKILL));
}
