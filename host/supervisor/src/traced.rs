//! An exec of a process that another one traces (strace, gdb), which can't be seized: the new image maps the blob itself.
//!
//! Its tracer is stopped until the exec is over, so the new image stands still at its first instruction. The supervisor's
//! are put in place of it: they ask for the node's memory, by a call of execve that is answered and not made, map the blob
//! and go into it. The blob puts the image's own instructions back and begins it. The tracer sees some calls that the
//! program does not make, and no stop that natively is none.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use diecast_core_abi::{
    ASKS_MAGIC, BEGIN_LEN_MAX, BLOB_ADDR, BeginArgs, InitArgs, KICK_MAGIC, NODE_PAGE_LEN, PROC_MAGIC, PROC_PAGE_ADDR,
    TRACED_MAGIC,
};
use diecast_host_sys::ptrace::{self, Wait, Why};
use diecast_host_sys::seccomp::{self, Notification};
use diecast_host_sys::vdso::KernelVdso;
use diecast_host_sys::{GuestPtr, Tid, memory, process};

use crate::exec::{self, ExecError};
use crate::image;

const SYS_PTRACE: i32 = 101;
/// How long an exec may take, and the stop after it.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_micros(50);
/// What is put on the new image's stack, as far below its end as elsewhere.
const ROOM: u64 = 512;
/// From the arguments to the map of memory behind them.
const MAP_AT: u64 = 256;
const _: () = assert!(size_of::<BeginArgs>() as u64 <= MAP_AT && MAP_AT + 104 <= ROOM);

/// Whether a process asks to be traced by its parent.
pub fn wants_tracer(n: &Notification) -> bool {
    n.nr == SYS_PTRACE
}

/// Whether it is the blob that does, on behalf of a program that has asked before.
pub fn asks_again(n: &Notification) -> bool {
    n.args[1] == TRACED_MAGIC
}

/// Whether a thread's parent waits in vfork until it execs: it could trace nothing meanwhile, and each trapped call stops
/// what is traced. So what asks for it is traced from its next image's first instruction on.
pub fn parent_waits(tid: Tid) -> bool {
    parent_of(tid).and_then(|parent| stat_field(parent, 0)).is_some_and(|state| state == "D")
}

/// The process that a thread's own was started by.
pub fn parent_of(tid: Tid) -> Option<Tid> {
    stat_field(tid, 1)?.parse().ok().map(Tid)
}

/// A field of /proc/PID/stat, counted from the state behind the name.
pub(crate) fn stat_field(tid: Tid, n: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", tid.0)).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(n).map(str::to_owned)
}

/// Whether a notification is a traced process's question for its node's memory.
pub fn asks(n: &Notification) -> bool {
    exec::says(n, ASKS_MAGIC)
}

/// The process that a thread belongs to.
pub fn process_of(tid: Tid) -> Option<Tid> {
    let status = fs::read_to_string(format!("/proc/{}/status", tid.0)).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok()).map(Tid)
}

/// Kicks a thread: the wait that it is in is translated anew, and a call that it was taken out of is made again.
pub fn kick(tid: Tid) -> io::Result<()> {
    process::queue_signal(process_of(tid).unwrap_or(tid), tid, libc::SIGTRAP, KICK_MAGIC)
}

/// Where a process stands.
#[derive(Debug)]
enum Stands {
    /// Its old image goes on, stopped or not.
    Old {
        stopped: bool,
    },
    /// At the beginning of its new one: instruction and stack pointer.
    Begins {
        pc: u64,
        sp: u64,
    },
    /// Its new one is not complete, or runs.
    Runs,
    Gone,
}

fn stands(pid: Tid) -> Stands {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.0)) else { return Stands::Gone };
    let stopped = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('t'));
    let mut head = [0u64; 1];
    let read = memory::read_words(pid, GuestPtr(PROC_PAGE_ADDR), &mut head);
    if read.is_ok() && head[0] == PROC_MAGIC {
        return Stands::Old { stopped };
    }
    // A call's number and arguments, the stack pointer and the instruction pointer.
    let call = if stopped {
        fs::read_to_string(format!("/proc/{}/syscall", pid.0)).unwrap_or_default()
    } else {
        String::new()
    };
    let mut words = call.split_whitespace().rev().map_while(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
    match (words.next(), words.next()) {
        (Some(pc), Some(sp)) => Stands::Begins { pc, sp },
        _ => Stands::Runs,
    }
}

/// Whether there is such a file for a process: only a no is sure. Links lead from the process's root, not from ours.
pub(crate) fn may_exist(tid: Tid, path: &Path) -> bool {
    let root = PathBuf::from(format!("/proc/{}/root", tid.0));
    let mut at = if path.is_absolute() { root.clone() } else { PathBuf::from(format!("/proc/{}/cwd", tid.0)) };
    let mut left: Vec<PathBuf> = vec![path.to_owned()];
    for _ in 0..200 {
        let Some(next) = left.pop() else { return true };
        let mut parts = next.components();
        match parts.next() {
            None => continue,
            Some(Component::RootDir) => at.clone_from(&root),
            Some(Component::CurDir | Component::Prefix(_)) => {}
            // Whether that leaves the root is for the kernel to say.
            Some(Component::ParentDir) => return true,
            Some(Component::Normal(name)) => {
                let here = at.join(name);
                left.push(parts.as_path().to_owned());
                match fs::symlink_metadata(&here) {
                    Ok(m) if m.is_symlink() => match fs::read_link(&here) {
                        Ok(target) => left.push(target),
                        Err(_) => return true,
                    },
                    Ok(_) => at = here,
                    Err(e) => return e.kind() != std::io::ErrorKind::NotFound,
                }
                continue;
            }
        }
        left.push(parts.as_path().to_owned());
    }
    true
}

/// Whether an exec of this path surely fails because there is no such file: every directory on the way, from the process's root,
/// lets everybody search it, and none lies on another file system, such as /proc, which shows each process something else.
pub(crate) fn is_surely_missing(tid: Tid, path: &Path) -> bool {
    let mut at = PathBuf::from(format!("/proc/{}/root/", tid.0));
    let Ok(root) = fs::metadata(&at) else { return false };
    let mut parts = path.components();
    if parts.next() != Some(Component::RootDir) || root.mode() & 0o111 != 0o111 {
        return false;
    }
    for part in parts {
        let Component::Normal(name) = part else { return false };
        at.push(name);
        match fs::symlink_metadata(&at) {
            Ok(m) if m.is_dir() && m.mode() & 0o111 == 0o111 && m.dev() == root.dev() => {}
            // Links as well: where they lead is for the kernel to say.
            Ok(_) => return false,
            Err(e) => return e.kind() == std::io::ErrorKind::NotFound,
        }
    }
    false
}

/// The path that execve was called with.
pub(crate) fn path_of(tid: Tid, n: &Notification) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    while n.nr == exec::SYS_EXECVE && bytes.len() < 4096 {
        let mut piece = [0u8; 32];
        let at = n.args[0] + bytes.len() as u64;
        // Up to the end of a page, behind which there may be nothing.
        let len = (piece.len() as u64).min(4096 - at % 4096) as usize;
        memory::read(tid, GuestPtr(at), &mut piece[..len]).ok()?;
        match piece[..len].iter().position(|b| *b == 0) {
            Some(end) => {
                bytes.extend(&piece[..end]);
                use std::os::unix::ffi::OsStringExt;
                return Some(std::ffi::OsString::from_vec(bytes).into());
            }
            None => bytes.extend(&piece[..len]),
        }
    }
    None
}

/// Protection of the page at an address, as mmap takes it.
fn protection(pid: Tid, at: u64) -> Option<u64> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", pid.0)).ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        let bit = |i: usize, c: u8, value: u64| if rest.as_bytes().get(i) == Some(&c) { value } else { 0 };
        (from..to).contains(&at).then(|| bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4))
    })
}

/// What a new image does first: it asks for the node's memory, maps the blob and goes into it. All registers are free.
fn instructions(args_at: u64, begin: u64) -> Vec<u8> {
    let mut code = Vec::with_capacity(BEGIN_LEN_MAX);
    let mut with = |opcode: &[u8], operand: u64, bytes: usize| {
        code.extend(opcode);
        code.extend(&operand.to_le_bytes()[..bytes]);
    };
    with(&[0x48, 0xbc], args_at - 128, 8); // mov rsp, ...
    with(&[0x48, 0xbf], ASKS_MAGIC, 8); // mov rdi, ...
    with(&[0xb8], exec::SYS_EXECVE as u64, 4); // mov eax, ...
    with(&[0x0f, 0x05], 0, 0); // syscall
    with(&[0x48, 0xbb], args_at, 8); // mov rbx, ...
    with(&[0x48, 0x89, 0x03], 0, 0); // mov [rbx], rax
    with(&[0x49, 0x89, 0xc0], 0, 0); // mov r8, rax
    with(&[0x48, 0xbf], BLOB_ADDR, 8); // mov rdi, ...
    with(&[0x48, 0xbe], image::mapped_len(), 8); // mov rsi, ...
    with(&[0xba], exec::PROT_READ_EXEC, 4); // mov edx, ...
    with(&[0x41, 0xba], exec::MAP_PRIVATE_FIXED_NOREPLACE, 4); // mov r10d, ...
    with(&[0x45, 0x31, 0xc9], 0, 0); // xor r9d, r9d
    with(&[0xb8], exec::SYS_MMAP, 4); // mov eax, ...
    with(&[0x0f, 0x05], 0, 0); // syscall
    with(&[0x48, 0x89, 0xdf], 0, 0); // mov rdi, rbx
    with(&[0x48, 0xb8], begin, 8); // mov rax, ...
    with(&[0xff, 0xe0], 0, 0); // jmp rax
    code
}

/// What became of an exec of a traced process.
#[derive(Debug)]
pub enum Outcome {
    /// The new image maps the blob itself, and asks for the node's memory first.
    Asks,
    /// The exec failed; the old image goes on.
    Failed,
    Gone,
}

/// Whether a process's tracer traces this one too. To hold it would be to wait for oneself.
pub fn by_ours(tid: Tid) -> bool {
    exec::tracer_of(tid).is_some_and(|tracer| exec::any_tracer_of(Tid(std::process::id() as i32)) == Some(tracer))
}

/// The tracer, which can't go on to do anything from now on. It may have to wait in the kernel for the exec before it
/// stops (vfork), so its stop is not waited for here.
struct Held;

impl Held {
    fn begin(tracer: Tid) -> std::io::Result<Held> {
        ptrace::seize(tracer)?;
        ptrace::interrupt(tracer)?;
        Ok(Held)
    }
}

impl Drop for Held {
    /// Lets it go on, once it has stopped. A signal that it is about to receive goes through.
    fn drop(&mut self) {
        while let Ok(Wait::Stopped(s)) = ptrace::wait() {
            let signal = match s.why {
                Why::Interrupt => {
                    let _ = s.detach(0);
                    return;
                }
                Why::Signal(signal, _) => signal,
                Why::Exec => 0,
            };
            if s.resume(signal).is_err() {
                return;
            }
        }
    }
}

/// Carries one exec of a traced process through, but for what the new image does itself. `asks` is called before that can
/// begin. Blocks while the tracer does not stop, in a thread of its own: it may have to wait for another exec.
pub fn carry(
    listener: &OwnedFd,
    n: &Notification,
    kernel: &KernelVdso,
    lineage: u64,
    asks: impl FnOnce(Tid),
) -> Result<Outcome, ExecError> {
    let tid = n.tid();
    let (Some(tracer), Some(pid)) = (exec::tracer_of(tid), process_of(tid)) else { return Err(ExecError::Traced(tid)) };
    if path_of(tid, n).is_some_and(|path| !may_exist(tid, &path)) {
        seccomp::let_continue(listener, n)?;
        return Ok(Outcome::Failed);
    }
    // One that is traced itself can't be held.
    let _held = Held::begin(tracer).map_err(|_| ExecError::Traced(tid))?;
    seccomp::let_continue(listener, n)?;
    let done = at_its_beginning(pid, kernel, lineage)?;
    if let Outcome::Asks = done {
        asks(pid);
    }
    Ok(done)
}

fn at_its_beginning(pid: Tid, kernel: &KernelVdso, lineage: u64) -> Result<Outcome, ExecError> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match stands(pid) {
            Stands::Gone => return Ok(Outcome::Gone),
            Stands::Old { stopped: true } => return Ok(Outcome::Failed),
            Stands::Begins { pc, sp } => {
                return prepare(pid, pc, sp, kernel, lineage).map(|()| Outcome::Asks).inspect_err(|_| {
                    // Half in a frame is worse than not at all.
                    let _ = process::kill(pid, libc::SIGKILL);
                });
            }
            Stands::Old { stopped: false } if Instant::now() > give_up => return Ok(Outcome::Failed),
            Stands::Runs if Instant::now() > give_up => {
                let _ = process::kill(pid, libc::SIGKILL);
                return Err(ExecError::Traced(pid));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// Puts the supervisor's instructions at the beginning of the image, and on its stack what they and the blob need.
fn prepare(pid: Tid, pc: u64, sp: u64, kernel: &KernelVdso, lineage: u64) -> Result<(), ExecError> {
    use std::io::Read;
    const CLASS_64: u8 = 2;
    let mut head = [0u8; 5];
    fs::File::open(format!("/proc/{}/exe", pid.0))?.read_exact(&mut head)?;
    if head[4] != CLASS_64 {
        return Err(ExecError::Not64Bit(pid));
    }
    let auxv = exec::find_auxv(pid, sp)?.ok_or(ExecError::NoVdso(pid))?;
    let begin = image::offset("diecast_blob_begin").ok_or(ExecError::NoVdso(pid))?;
    let prot = protection(pid, pc).ok_or(ExecError::NoVdso(pid))?;
    let at = (sp - ROOM) & !15;
    let map = exec::mm_map(pid, &auxv);
    let init = InitArgs {
        // Comes with the answer.
        fd: u64::MAX,
        node_off: image::mapped_len(),
        node_len: NODE_PAGE_LEN,
        kernel_clock_gettime: auxv.vdso + kernel.clock_gettime,
        kernel_getcpu: if kernel.getcpu == 0 { 0 } else { auxv.vdso + kernel.getcpu },
        kernel_getrandom: if kernel.getrandom == 0 { 0 } else { auxv.vdso + kernel.getrandom },
        auxv_slot: auxv.slot,
        lineage,
        mm_map: if map.is_some() { at + MAP_AT } else { 0 },
    };
    let code = instructions(at, BLOB_ADDR + begin);
    let mut own = [0u8; BEGIN_LEN_MAX];
    memory::read(pid, GuestPtr(pc), &mut own[..code.len()])?;
    let begin_words = [pc, sp, prot, code.len() as u64];
    let words = init.words().into_iter().chain(begin_words);
    let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    bytes.extend(own);
    memory::write_all(pid, GuestPtr(at), &bytes)?;
    if let Some(map) = map {
        let bytes: Vec<u8> = map.iter().flat_map(|w| w.to_ne_bytes()).collect();
        memory::write_all(pid, GuestPtr(init.mm_map), &bytes)?;
    }
    memory::write_all(pid, GuestPtr(pc), &code)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instructions_fit_and_end_in_the_blob() {
        let code = instructions(0x7fff_0000_1000, BLOB_ADDR + 0x123);
        assert!(code.len() <= BEGIN_LEN_MAX, "{}", code.len());
        let text: Vec<String> = iced_x86::Decoder::with_ip(64, &code, 0, 0).iter().map(|i| format!("{i}")).collect();
        assert_eq!(text.len(), 17, "{text:?}");
        assert_eq!((text[3].as_str(), text[13].as_str(), text[16].as_str()), ("syscall", "syscall", "jmp rax"));
        assert_eq!(text[5], "mov [rbx],rax");
    }

    #[test]
    fn a_file_is_looked_for_from_the_processs_root() {
        let me = Tid(std::process::id() as i32);
        for (path, there) in [
            ("/bin/sh", true),
            ("/bin/no-such-program", false),
            ("/no-such-folder/sh", false),
            ("/proc/self/exe", true),
            ("Cargo.toml", true),
            ("./no-such-program", false),
            // Not looked at.
            ("../no-such-program", true),
        ] {
            assert_eq!(may_exist(me, Path::new(path)), there, "{path}");
        }
    }
}
