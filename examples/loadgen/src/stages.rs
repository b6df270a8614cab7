//! Requests that several threads or processes of a server work on, one after another: each has a part of the work and hands on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// What a part of a request's work is handed on by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HandOn {
    /// Threads, by a condition variable
    Condition,
    /// Threads, by pipes
    Pipe,
    /// Processes, by Unix sockets
    Process,
}

impl HandOn {
    /// Where a byte comes out, and where it goes in.
    fn connection(self) -> io::Result<(OwnedFd, OwnedFd)> {
        match self {
            HandOn::Process => UnixStream::pair().map(|(from, to)| (from.into(), to.into())),
            _ => Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?),
        }
    }
}

/// All parts but the first, whose thread asks for them.
pub struct Stages(Kind);

enum Kind {
    Alone,
    Condition(Arc<Turns>),
    /// A byte goes out to the first of the others, and one comes back from the last.
    Chain {
        out: File,
        back: File,
    },
}

/// Whose turn it is: 0 of who asks.
struct Turns {
    now: Mutex<usize>,
    changed: Vec<Condvar>,
}

impl Turns {
    fn give(&self, to: usize) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = to;
        self.changed[to].notify_one();
    }

    fn wait_for(&self, mine: usize) {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed[mine].wait_while(now, |now| *now != mine));
    }
}

impl Stages {
    /// `count` of them in all, 1 at least. `work` is what each thread does; a process is this program, called with the arguments
    /// `of_process`, and has [`serve_part`] do it.
    pub fn start(
        count: usize,
        by: HandOn,
        work: impl Fn() + Copy + Send + 'static,
        of_process: &[String],
    ) -> io::Result<Stages> {
        let others = count.saturating_sub(1);
        Ok(Stages(match by {
            _ if others == 0 => Kind::Alone,
            HandOn::Condition => {
                let changed = (0..=others).map(|_| Condvar::new()).collect();
                let turns = Arc::new(Turns { now: Mutex::new(0), changed });
                for mine in 1..=others {
                    let turns = turns.clone();
                    thread::spawn(move || {
                        loop {
                            turns.wait_for(mine);
                            work();
                            turns.give(if mine < others { mine + 1 } else { 0 });
                        }
                    });
                }
                Kind::Condition(turns)
            }
            HandOn::Pipe | HandOn::Process => {
                let (mut from, out) = by.connection()?;
                for _ in 0..others {
                    let (next, to) = by.connection()?;
                    let mine = std::mem::replace(&mut from, next);
                    if by == HandOn::Pipe {
                        thread::spawn(move || serve_part(File::from(mine), File::from(to), work));
                    } else {
                        // It ends when nobody can write to it any more, as this one ends.
                        Command::new(std::env::current_exe()?).args(of_process).stdin(mine).stdout(to).spawn()?;
                    }
                }
                Kind::Chain { out: out.into(), back: from.into() }
            }
        }))
    }

    /// Has the others do their parts, in order, and returns when the last has.
    pub fn hand_on(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Kind::Alone => {}
            Kind::Condition(turns) => {
                turns.give(1);
                turns.wait_for(0);
            }
            Kind::Chain { out, back } => {
                out.write_all(&[0])?;
                back.read_exact(&mut [0])?;
            }
        }
        Ok(())
    }
}

/// Works whenever a byte comes, and passes it on; until no more can come, or nobody reads.
pub fn serve_part(mut from: impl Read, mut to: impl Write, work: impl Fn()) {
    let mut byte = [0];
    while from.read_exact(&mut byte).is_ok() {
        work();
        if to.write_all(&byte).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_part_is_done_once_and_before_the_answer() {
        static DONE: AtomicUsize = AtomicUsize::new(0);
        for by in [HandOn::Condition, HandOn::Pipe] {
            for count in [1, 2, 5] {
                DONE.store(0, Ordering::SeqCst);
                let work = || _ = DONE.fetch_add(1, Ordering::SeqCst);
                let mut stages = Stages::start(count, by, work, &[]).unwrap();
                for asked in 1..=20 {
                    stages.hand_on().unwrap();
                    assert_eq!(DONE.load(Ordering::SeqCst), asked * (count - 1), "{by:?}, {count} parts");
                }
            }
        }
    }
}
