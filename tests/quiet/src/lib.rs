//! Tests that measure time, on a machine that others use. A look that failed *while the machine was disturbed* counts
//! for nothing: it is taken again, and said. One that failed with no disturbance seen is outvoted by two that hold, since
//! nothing here sees a host's caches, disks and interrupts; a second such failure ends the test. Disturbances come in
//! stretches of seconds to minutes, so the next look waits, within limits, for the end of one.
//!
//! Where a hypervisor kept a tenth of the cores or more in every look, nothing was measured: the test then says on stderr
//! that it is NOT JUDGED, and why, and ends. With `DIECAST_JUDGE=always` it fails instead.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Looks at most.
const LOOKS: usize = 5;
/// Failures on a quiet machine that end a test: the majority of three looks.
const QUIET_FAILURES: usize = 2;
/// Between two readings of the watch: rare enough to cost nothing, often enough to see a core that is gone for 10 ms.
const BEAT: Duration = Duration::from_millis(5);
/// Beyond its beat, the watch's own wake-up and what a short job of another thread takes.
const PATIENCE: Duration = Duration::from_millis(3);
/// Turns of the work that the watch does at each beat; some microseconds.
const TURNS: u64 = 3_000;
/// A core is slow when that work takes so many times the least that it took. A host of virtual machines may clock its
/// cores down to a tenth for 50 to 100 ms, every other second, and call none of it stolen.
const SLOW: u32 = 3;

/// A machine is quiet again when it is not disturbed for so long.
const LULL: Duration = Duration::from_millis(500);
/// The wait for that after a first look takes no longer, twice as much after a second, and so on; those of a process
/// together no longer than the last.
const WAIT_MAX: Duration = Duration::from_secs(20);
const WAITS_MAX: Duration = Duration::from_secs(240);
/// Share of the cores that a hypervisor keeps where no look can tell anything. One was seen to keep 50 to 95 % for hours.
const HOPELESS: f64 = 0.1;

/// What was taken from this machine in a stretch of time.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Taken {
    /// Share of the cores' time that a hypervisor kept, from `steal` in /proc/stat; 0 where there is none.
    pub stolen: f64,
    /// The longest that a thread of ordinary priority had to wait for a core.
    pub longest_wait: Duration,
    /// How long a core ran at less than a third of its best speed.
    pub slow: Duration,
}

impl Taken {
    /// Enough to spoil a measurement of milliseconds: half a percent of the cores, or a core for 10 ms.
    pub fn disturbs(&self) -> bool {
        const ENOUGH: Duration = Duration::from_millis(10);
        self.stolen >= 0.005 || self.longest_wait >= ENOUGH || self.slow >= ENOUGH
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let (stolen, wait, slow) = (self.stolen * 100.0, ms(self.longest_wait), ms(self.slow));
        write!(f, "the hypervisor took {stolen:.1} % of the cores, a thread waited {wait:.1} ms for one, ")?;
        write!(f, "and one ran at less than a third of its speed for {slow:.0} ms")
    }
}

/// Ticks stolen and all ticks of all cores since boot, from the first line of /proc/stat.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).map_while(|w| w.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest times are part of user and nice.
    Some((*numbers.get(7)?, numbers.iter().take(8).sum()))
}

fn ticks_now() -> Option<(u64, u64)> {
    ticks(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Work of a fixed size, and how long it took.
fn timed_work() -> Duration {
    let begin = Instant::now();
    let mut x = 1u64;
    for turn in 0..TURNS {
        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005) ^ turn);
    }
    begin.elapsed()
}

/// Looks at the machine while something else is measured, but for what is done [`apart`] from that.
struct Watch {
    stop: Arc<AtomicBool>,
    apart: Arc<AtomicBool>,
    beats: JoinHandle<Taken>,
}

thread_local! {
    /// Says to the watch of this thread's look that what is done now is no part of it.
    static APART: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Does something, and says what was taken from the machine meanwhile.
fn watched<T>(work: impl FnOnce() -> T) -> (T, Taken) {
    let watch = Watch::start();
    APART.set(Some(watch.apart.clone()));
    let done = work();
    APART.set(None);
    (done, watch.end())
}

/// Does what is no part of a look that this thread is in: waits for a turn.
pub fn apart<T>(wait: impl FnOnce() -> T) -> T {
    let flag = APART.with_borrow(Option::clone);
    let set = |value| flag.iter().for_each(|flag| flag.store(value, Ordering::Relaxed));
    set(true);
    let done = wait();
    set(false);
    done
}

impl Watch {
    fn start() -> Watch {
        let (stop, apart) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (ends, is_apart) = (stop.clone(), apart.clone());
        let beats = thread::spawn(move || {
            let mut taken = Taken::default();
            let mut least = (0..20).map(|_| timed_work()).min().unwrap_or_default();
            let (mut ticks, mut steal) = (Ticks::default(), Some(Steal::watch()));
            while !ends.load(Ordering::Relaxed) {
                let (begin, began_apart) = (Instant::now(), is_apart.load(Ordering::Relaxed));
                thread::sleep(BEAT);
                if began_apart || is_apart.load(Ordering::Relaxed) {
                    steal.take().iter().for_each(|steal| ticks.add(steal));
                    continue;
                }
                steal.get_or_insert_with(Steal::watch);
                taken.longest_wait = taken.longest_wait.max(begin.elapsed().saturating_sub(BEAT + PATIENCE));
                // The second of two: the first is slow where the sleep has cooled the caches.
                timed_work();
                let work = timed_work();
                least = least.min(work);
                if work > SLOW * least {
                    taken.slow += begin.elapsed();
                }
            }
            steal.iter().for_each(|steal| ticks.add(steal));
            Taken { stolen: ticks.share(), ..taken }
        });
        Watch { stop, apart, beats }
    }

    fn end(self) -> Taken {
        self.stop.store(true, Ordering::Relaxed);
        self.beats.join().unwrap_or_default()
    }
}

/// One measurement of this process at a time: another test's threads would be the disturbance.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// How many turns this thread has.
    static TURNS_HELD: Cell<usize> = const { Cell::new(0) };
}

/// A turn of something else that tests have one at a time, for as long as it lives: taken in a look, never around one.
/// Another look may wait for it, and this thread would wait for that look.
#[derive(Debug)]
pub struct Turn<T> {
    _lock: T,
    // Counted for this thread.
    _not_send: PhantomData<*const ()>,
}

impl<T> Turn<T> {
    pub fn new(lock: T) -> Turn<T> {
        TURNS_HELD.set(TURNS_HELD.get() + 1);
        Turn { _lock: lock, _not_send: PhantomData }
    }
}

impl<T> Drop for Turn<T> {
    fn drop(&mut self) {
        TURNS_HELD.set(TURNS_HELD.get() - 1);
    }
}

/// Runs a test's measurement, once where it holds.
///
/// One that panics is taken again, five times at most in all: until it holds once where the machine was disturbed during
/// each failure, until two of three hold where it was not.
///
/// # Panics
/// As the last look did, and where the caller has a [`Turn`].
pub fn look(measurement: impl Fn()) {
    assert_eq!(TURNS_HELD.get(), 0, "a turn is taken in the look, or two tests wait for each other");
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    repeat(|| watched(|| catch_unwind(AssertUnwindSafe(&measurement))), wait_for_quiet, judged_still);
}

/// Says that nothing could be measured, since a hypervisor kept so much of the cores all the time; true where the test is
/// to be judged all the same.
fn judged_still(stolen: f64) -> bool {
    say("NOT JUDGED", format_args!("while it failed a hypervisor kept {:.0} % of the cores", stolen * 100.0));
    std::env::var("DIECAST_JUDGE").is_ok_and(|v| v == "always")
}

/// Says that this test, or a part of it, looked at nothing, and why.
pub fn skipped(why: impl std::fmt::Display) {
    say("SKIPPED", why);
}

/// Says something of the running test. Not by a macro: the output of a test that does not fail would not be seen.
fn say(what: &str, text: impl std::fmt::Display) {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let _ = std::io::stderr().write_all(format!("{what}: {name}: {text}\n").as_bytes());
}

/// Time that a hypervisor takes from now on.
pub struct Steal(Option<(u64, u64)>);

impl Steal {
    pub fn watch() -> Steal {
        Steal(ticks_now())
    }

    /// Share of the cores' time since then; 0 where there is no hypervisor.
    fn share(&self) -> f64 {
        let mut since = Ticks::default();
        since.add(self);
        since.share()
    }

    /// Whether a test that failed since then has measured nothing, as [`look`] says of its own.
    pub fn measured_nothing(&self) -> bool {
        let stolen = self.share();
        stolen >= HOPELESS && !judged_still(stolen)
    }
}

/// Ticks that a hypervisor took, of so many.
#[derive(Clone, Copy, Default)]
struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    /// Those since then.
    fn add(&mut self, since: &Steal) {
        if let (Some(then), Some(now)) = (since.0, ticks_now()) {
            self.stolen += now.0.saturating_sub(then.0);
            self.all += now.1.saturating_sub(then.1);
        }
    }

    fn share(self) -> f64 {
        if self.all > 0 { self.stolen as f64 / self.all as f64 } else { 0.0 }
    }
}

/// Claims of a measurement that don't depend on each other: one that held in a look need not hold in the next, so that each
/// is disturbed by itself.
#[derive(Default)]
pub struct Claims {
    held: RefCell<BTreeSet<String>>,
    failed: RefCell<Vec<String>>,
}

impl Claims {
    /// `name` is the same in each look; `text` is said where it never holds.
    pub fn claim(&self, name: &str, holds: bool, text: impl fmt::Display) {
        if holds {
            self.held.borrow_mut().insert(name.to_owned());
        } else if !self.held.borrow().contains(name) {
            self.failed.borrow_mut().push(format!("{name}: {text}"));
        }
    }

    /// The end of a look.
    ///
    /// # Panics
    /// Where a claim failed that never held.
    fn judge(&self) {
        let failed = self.failed.take();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }
}

/// As [`look`], with claims that are held one by one; what the measurement itself asserts must hold in the same look.
///
/// # Panics
/// As the last look did.
pub fn look_at_each(measurement: impl Fn(&Claims)) {
    let claims = Claims::default();
    look(|| {
        claims.failed.take();
        measurement(&claims);
        claims.judge();
    });
}

/// Waits for a lull in which nothing disturbs the machine, after so many looks: 20 s at most after the first, twice as much
/// after each further one, and ten minutes in all of a process.
pub fn wait_for_quiet(looks: usize) {
    static WAITED: Mutex<Duration> = Mutex::new(Duration::ZERO);
    let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
    let most = WAIT_MAX * (1 << (looks - 1).min(4));
    let (begin, limit) = (Instant::now(), most.min(WAITS_MAX.saturating_sub(*waited)));
    while begin.elapsed() < limit {
        if !watched(|| thread::sleep(LULL)).1.disturbs() {
            break;
        }
    }
    *waited += begin.elapsed();
}

type Outcome = Result<(), Box<dyn std::any::Any + Send>>;

/// `judged_still` is asked, with the least share stolen, where nothing could be measured in any look.
fn repeat(
    mut watched: impl FnMut() -> (Outcome, Taken),
    mut wait: impl FnMut(usize),
    judged_still: impl FnOnce(f64) -> bool,
) {
    let (mut held, mut quiet_failures, mut least_stolen) = (0, 0, 1.0_f64);
    for n in 1..=LOOKS {
        let (outcome, taken) = watched();
        let Err(panic) = outcome else {
            held += 1;
            if held > quiet_failures {
                return;
            }
            continue;
        };
        quiet_failures += usize::from(!taken.disturbs());
        least_stolen = least_stolen.min(taken.stolen);
        eprintln!("look {n} failed: {taken}");
        // The votes that are left can't outweigh the failures any more.
        if quiet_failures == QUIET_FAILURES || LOOKS - n + held <= quiet_failures {
            if least_stolen >= HOPELESS && !judged_still(least_stolen) {
                return;
            }
            resume_unwind(panic);
        }
        if taken.disturbs() {
            wait(n);
        }
    }
    unreachable!("the last look holds or ends the test");
}

/// How long a thread or process, a name below /proc, has waited for cores, ns. Source: schedstat.
pub fn run_delay_ns(task: impl std::fmt::Display) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{task}/schedstat")).expect("schedstat");
    text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).expect("a time of waiting")
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Taken =
        Taken { stolen: 0.004, longest_wait: Duration::from_millis(9), slow: Duration::from_millis(9) };
    const SLOWED: Taken = Taken { slow: Duration::from_millis(20), ..QUIET };
    const STOLEN: Taken = Taken { stolen: 0.05, ..QUIET };
    const WAITED: Taken = Taken { longest_wait: Duration::from_millis(30), ..QUIET };

    const HALVED: Taken = Taken { stolen: 0.5, ..QUIET };

    /// A short job of an ordinary priority beside more busy threads than cores: the watch waits for one.
    fn crowd() {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..8 * thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::black_box(());
                    }
                });
            }
            thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn what_is_done_apart_is_not_watched() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // A scheduler may be kind to who sleeps, and a machine is busy by itself now and then.
        let middle = |work: fn()| {
            let mut waits: Vec<Duration> = (0..9).map(|_| watched(work).1.longest_wait).collect();
            waits.sort();
            waits[4]
        };
        let (seen, unseen) = (middle(crowd), middle(|| apart(crowd)));
        assert!(unseen < seen / 4, "{unseen:?} of {seen:?}");
    }

    #[test]
    #[should_panic(expected = "a turn is taken in the look")]
    fn no_look_is_taken_in_a_turn() {
        drop(Turn::new(()));
        let _turn = Turn::new(());
        look(|| ());
    }

    /// Looks taken when those hold that say so, on a machine in these states; whether the test failed. After each failure
    /// on a disturbed machine, but for the last, quiet is waited for.
    fn looks(states: &[(bool, Taken)]) -> (usize, bool) {
        let (looks, failed, asked) = judged(states, true);
        assert_eq!(asked, states[..looks].iter().all(|s| !s.0 && s.1.stolen >= HOPELESS));
        (looks, failed)
    }

    /// The same, and whether it was asked if a test is to fail that measured nothing.
    fn judged(states: &[(bool, Taken)], always: bool) -> (usize, bool, bool) {
        let (taken, waits, asked) = (Cell::new(0), Cell::new(0), Cell::new(false));
        let judged_still = |_| {
            asked.set(true);
            always
        };
        let watched = || {
            let (holds, state) = states[taken.get()];
            taken.set(taken.get() + 1);
            (catch_unwind(|| assert!(holds)), state)
        };
        let failed = catch_unwind(AssertUnwindSafe(|| {
            repeat(watched, |_| waits.set(waits.get() + 1), judged_still);
        }))
        .is_err();
        let last_failed = usize::from(failed || asked.get());
        let disturbed = states[..taken.get() - last_failed].iter().filter(|(holds, s)| !holds && s.disturbs());
        assert_eq!(waits.get(), disturbed.count());
        (taken.get(), failed, asked.get())
    }

    #[test]
    fn where_every_look_was_stolen_the_test_says_that_it_measured_nothing() {
        let (holds, fails) = (true, false);
        assert_eq!(judged(&[(fails, HALVED); 5], false), (5, false, true));
        assert_eq!(judged(&[(fails, HALVED); 5], true), (5, true, true));
        let once = |state| [(fails, HALVED), (fails, HALVED), state, (fails, HALVED), (fails, HALVED)];
        assert_eq!(judged(&once((fails, WAITED)), false), (5, true, false));
        assert_eq!(judged(&once((fails, QUIET)), false), (4, true, false));
        assert_eq!(judged(&once((holds, HALVED)), false), (3, false, false));
    }

    #[test]
    fn a_disturbed_failure_counts_for_nothing_and_a_quiet_one_needs_two_that_hold() {
        let (holds, fails) = (true, false);
        assert_eq!(looks(&[(holds, STOLEN)]), (1, false));
        assert_eq!(looks(&[(fails, STOLEN), (holds, QUIET)]), (2, false));
        assert_eq!(
            looks(&[(fails, WAITED), (fails, SLOWED), (fails, STOLEN), (fails, STOLEN), (holds, WAITED)]),
            (5, false)
        );
        assert_eq!(looks(&[(fails, STOLEN); 5]), (5, true));
        assert_eq!(looks(&[(fails, QUIET), (holds, QUIET), (holds, STOLEN)]), (3, false));
        assert_eq!(looks(&[(fails, QUIET), (fails, QUIET)]), (2, true));
        assert_eq!(looks(&[(fails, QUIET), (holds, QUIET), (fails, QUIET)]), (3, true));
        assert_eq!(looks(&[(fails, STOLEN), (fails, STOLEN), (fails, STOLEN), (fails, QUIET)]), (4, true));
        let late = [(fails, STOLEN), (fails, QUIET), (holds, QUIET), (fails, STOLEN), (holds, QUIET)];
        assert_eq!(looks(&late), (5, false));
    }

    #[test]
    fn a_claim_that_held_once_is_not_asked_again() {
        let claims = Claims::default();
        let look = |a: bool, b: bool| {
            claims.claim("a", a, 1);
            claims.claim("b", b, 2);
            catch_unwind(AssertUnwindSafe(|| claims.judge())).is_ok()
        };
        assert_eq!([look(true, false), look(false, false), look(false, true)], [false, false, true]);
        let never = Claims::default();
        never.claim("c", false, "text");
        let panic = catch_unwind(AssertUnwindSafe(|| never.judge())).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "c: text");
    }

    #[test]
    fn steal_is_the_eighth_number() {
        assert_eq!(ticks("cpu  10 20 30 40 0 0 0 100 7 7\ncpu0 1 1\n"), Some((100, 200)));
        assert_eq!(ticks("cpu  10 20 30 40\n"), None);
        assert_eq!(ticks(""), None);
        let (stolen, all) = ticks_now().unwrap();
        assert!(stolen < all);
    }

    /// Four threads on each core: one that sleeps is not woken in time, and the watch sees it.
    #[test]
    fn a_busy_machine_is_seen() {
        let watch = Watch::start();
        let until = Instant::now() + Duration::from_millis(700);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|s| {
            for _ in 0..cores * 12 {
                s.spawn(|| while Instant::now() < until {});
            }
        });
        let taken = watch.end();
        assert!(taken.longest_wait > Duration::ZERO, "{taken}");
    }
}
