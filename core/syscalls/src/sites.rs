//! Calls that a place in a program can make without a signal: its instructions are replaced by a jump to the blob, which
//! then asks what the filter would have asked.

use crate::{Action, ROWS, Test, When, nr};

impl Test {
    /// Does it hold for these registers?
    #[inline(always)]
    pub const fn holds(self, a: &[u64; 6]) -> bool {
        match self {
            Test::NonNull(i) => register(a, i) != 0,
            Test::IntPositive(i) => register(a, i) as u32 as i32 > 0,
            Test::LowIn { arg, clear, values } => {
                let low = register(a, arg) as u32 & !clear;
                let (mut i, mut found) = (0, false);
                while i < values.len() {
                    found |= values[i] == low;
                    i += 1;
                }
                found
            }
        }
    }
}

/// Register `i` of a call, 0 for one that there is not.
#[inline(always)]
const fn register(a: &[u64; 6], i: u8) -> u64 {
    if i < 6 { a[i as usize] } else { 0 }
}

impl When {
    /// Does the filter send a call with these registers to the blob? Every loop is over constants: the blob has no
    /// tables, since these would need relocations.
    #[inline(always)]
    pub const fn holds(self, a: &[u64; 6]) -> bool {
        let mut i = 0;
        match self {
            When::Always => true,
            When::Any(tests) => {
                let mut any = false;
                while i < tests.len() {
                    any |= tests[i].holds(a);
                    i += 1;
                }
                any
            }
            When::All(tests) => {
                let mut all = true;
                while i < tests.len() {
                    all &= tests[i].holds(a);
                    i += 1;
                }
                all
            }
            When::EitherAnd([one, other], also) => (one.holds(a) || other.holds(a)) && also.holds(a),
            When::Options(levels) => {
                let mut named = false;
                while i < levels.len() {
                    let (level, names) = levels[i];
                    named |= level == a[1] as u32 && Test::LowIn { arg: 2, clear: 0, values: names }.holds(a);
                    i += 1;
                }
                named
            }
        }
    }
}

/// The condition of a row. Fails to compile for a number that is not trapped.
const fn when(number: u32) -> When {
    let mut i = 0;
    while i < ROWS.len() {
        if ROWS[i].nr == number {
            match ROWS[i].action {
                Action::Trap(when) => return when,
                _ => panic!("a call that is not trapped can't come by a jump"),
            }
        }
        i += 1;
    }
    panic!("no row has this number")
}

macro_rules! by_jump {
    ($($name:ident),* $(,)?) => {
        /// Numbers of the calls that programs may make often, and whose result is all that the blob changes.
        pub const BY_JUMP: &[u32] = &[$(nr::$name),*];

        /// Whether the filter would send this call to the blob; None for numbers that don't come by a jump.
        #[inline(always)]
        pub fn comes_by_jump(number: u32, a: &[u64; 6]) -> Option<bool> {
            match number {
                $(nr::$name => {
                    const WHEN: When = when(nr::$name);
                    Some(WHEN.holds(a))
                })*
                _ => None,
            }
        }
    };
}

by_jump!(
    OPEN,
    STAT,
    FSTAT,
    LSTAT,
    POLL,
    LSEEK,
    RT_SIGACTION,
    RT_SIGPROCMASK,
    SELECT,
    NANOSLEEP,
    SETITIMER,
    SETSOCKOPT,
    GETSOCKOPT,
    WAIT4,
    GETTIMEOFDAY,
    GETRUSAGE,
    TIMES,
    TIME,
    FUTEX,
    SEMTIMEDOP,
    TIMER_SETTIME,
    TIMER_GETTIME,
    CLOCK_GETTIME,
    CLOCK_NANOSLEEP,
    EPOLL_WAIT,
    WAITID,
    OPENAT,
    NEWFSTATAT,
    PSELECT6,
    PPOLL,
    EPOLL_PWAIT,
    TIMERFD_SETTIME,
    TIMERFD_GETTIME,
    GETCPU,
    STATX,
    EPOLL_PWAIT2,
);
