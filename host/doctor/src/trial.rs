//! Trials in a forked child that ends without ever becoming a program.
//!
//! Between fork and exec a child may only make plain system calls. That suffices to try most things, and what it
//! tried dies with it: namespaces, mounts, filters, sealed pages. Its answer travels as the errno of a failed spawn.

use std::io;
use std::process::Command;

use diecast_host_sys::process;

/// No errno is as large.
const ANSWER: i32 = 0x4000_0000;

/// Where and why a trial failed: the number of its step, from 1, and what the kernel said.
#[derive(Debug)]
pub(crate) struct Failed {
    pub step: u8,
    pub error: io::Error,
}

/// The error of one step.
pub(crate) fn at<T, E: Into<io::Error>>(step: u8, result: Result<T, E>) -> Result<T, Failed> {
    result.map_err(|error| Failed { step, error: error.into() })
}

/// Runs `steps` in a child, between fork and the exec that never comes. The outer error is that of fork itself.
///
/// `steps` makes system calls only; it may not allocate.
pub(crate) fn in_child<F>(mut steps: F) -> io::Result<Result<(), Failed>>
where
    F: FnMut() -> Result<(), Failed> + Send + Sync + 'static,
{
    // Never executed: the code before exec always fails.
    let mut command = Command::new("/");
    process::before_exec(&mut command, move || {
        let answer = match steps() {
            Ok(()) => ANSWER,
            Err(failed) => {
                let errno = failed.error.raw_os_error().unwrap_or(libc::EIO) & 0xffff;
                ANSWER | i32::from(failed.step) << 16 | errno
            }
        };
        Err(io::Error::from_raw_os_error(answer))
    });
    match command.spawn() {
        Ok(mut child) => {
            // A directory became a program: end it.
            let _ = child.kill();
            let _ = child.wait();
            Err(io::Error::other("a trial was executed"))
        }
        Err(error) => decode(error),
    }
}

fn decode(error: io::Error) -> io::Result<Result<(), Failed>> {
    match error.raw_os_error() {
        Some(ANSWER) => Ok(Ok(())),
        Some(code) if code & ANSWER != 0 => {
            let step = (code >> 16 & 0xff) as u8;
            Ok(Err(Failed { step, error: io::Error::from_raw_os_error(code & 0xffff) }))
        }
        _ => Err(error),
    }
}

/// [`in_child`] for callers who don't tell a failed fork (step 0) from a failed step.
pub(crate) fn child<F>(steps: F) -> Result<(), Failed>
where
    F: FnMut() -> Result<(), Failed> + Send + Sync + 'static,
{
    at(0, in_child(steps))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_child_arrives() {
        assert!(in_child(|| Ok(())).unwrap().is_ok());
        let failed = in_child(|| at(3, Err::<(), _>(io::Error::from_raw_os_error(libc::ENOTTY)))).unwrap().unwrap_err();
        assert_eq!((failed.step, failed.error.raw_os_error()), (3, Some(libc::ENOTTY)));
        let failed = in_child(|| at(255, Err::<(), _>(io::Error::other("no number")))).unwrap().unwrap_err();
        assert_eq!((failed.step, failed.error.raw_os_error()), (255, Some(libc::EIO)));
    }

    #[test]
    fn what_a_child_changes_is_its_own() {
        let before = rustix::system::uname().nodename().to_owned();
        let made = child(|| {
            at(1, crate::sys::unshare_in_child(rustix::thread::UnshareFlags::NEWUTS))?;
            at(2, rustix::system::sethostname(b"elsewhere"))
        });
        assert!(made.is_ok() || !process::is_root());
        assert_eq!(rustix::system::uname().nodename(), before.as_c_str());
    }
}
