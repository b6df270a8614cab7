//! A lesser host, made around one command: a system call that the kernel does not have.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

const fn filter(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Makes `call` fail with `errno` in the command and in everything that it starts, by a filter that comes before any
/// of its own. Needs root.
pub fn refuse(command: &mut Command, call: libc::c_long, errno: i32) {
    let program = [
        // The call's number is the first word of `struct seccomp_data`.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        // SAFETY: the kernel copies the program, which lives until the call returns.
        let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec it makes one system call and touches only its own copy of the program.
    unsafe { command.pre_exec(install) };
}

/// How far the host's CLOCK_REALTIME is ahead of its CLOCK_MONOTONIC, ns: what nothing in a frame may change.
pub fn real_ahead_ns() -> i64 {
    use diecast_host_sys::time;
    (time::clock_ns(libc::CLOCK_REALTIME) as i64).wrapping_sub(time::monotonic_ns() as i64)
}
