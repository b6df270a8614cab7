//! adjtimex(2) by the kernel's rules.

use diecast_core_clock::{
    Adjusted, Discipline, Leap, LeapState, NodeClock, Refused, Request, STA_NANO, STA_UNSYNC, is_time, modes,
    parts_of_ppb, real_fits,
};

const PLL: u32 = 1;

fn with(modes: u32) -> Request {
    Request { modes, ..Request::default() }
}

#[test]
fn checks_and_their_order() {
    let may = |r: Request| r.check(|| true);
    let may_not = |r: Request| r.check(|| false);
    use Refused::{Invalid, NotPermitted};
    assert_eq!(may_not(with(0)), Ok(()), "everybody may read");
    assert_eq!(may_not(with(modes::FREQUENCY)), Err(NotPermitted));
    assert_eq!(may_not(with(modes::ADJTIME)), Err(Invalid), "ADJTIME alone is nothing");
    assert_eq!(may_not(with(modes::ADJTIME | modes::OFFSET)), Err(NotPermitted));
    assert_eq!(may_not(with(modes::ADJTIME | modes::OFFSET | modes::NANO)), Ok(()), "OFFSET_SS_READ");
    let tick = |tick| Request { tick, ..with(modes::TICK) };
    assert_eq!(may_not(tick(0)), Err(NotPermitted), "permission comes before the value");
    for (value, expected) in [(8999, Err(Invalid)), (9000, Ok(())), (11000, Ok(())), (11001, Err(Invalid))] {
        assert_eq!(may(tick(value)), expected, "{value}");
    }
    let step = |fraction, nano| Request { fraction, ..with(modes::SETOFFSET | nano) };
    assert_eq!(may(step(-1, 0)), Err(Invalid));
    assert_eq!(may(step(1_000_000, 0)), Err(Invalid));
    assert_eq!(may(step(1_000_000, modes::NANO)), Ok(()));
    assert_eq!(may(step(1_000_000_000, modes::NANO)), Err(Invalid));
    assert_eq!(may(Request { freq: i64::MAX, ..with(modes::FREQUENCY) }), Err(Invalid));
    assert_eq!(may(Request { freq: i64::MAX / 65_536_000, ..with(modes::FREQUENCY) }), Ok(()));
}

#[test]
fn a_time_is_valid_as_in_the_kernel() {
    assert!(is_time(0, 0) && is_time(8_277_292_035, 999_999_999));
    for (s, ns) in [(-1, 0), (0, -1), (0, 1_000_000_000), (8_277_292_036, 0)] {
        assert!(!is_time(s, ns), "{s} {ns}");
    }
    assert!(real_fits(0, 5) && !real_fits(-1, 5), "boot is not before 1970");
}

#[test]
fn frequency_and_tick_become_a_rate() {
    let mut d = Discipline::start();
    let adjusted = d.apply(&Request { freq: 100 << 16, ..with(modes::FREQUENCY) }, 0);
    assert!(adjusted.rate);
    assert!(d.rate().abs_diff(parts_of_ppb(100_000)) <= 64, "{}", d.rate());
    assert_eq!(d.shown_freq(), 100 << 16);
    d.apply(&Request { freq: -900 << 16, ..with(modes::FREQUENCY) }, 0);
    assert_eq!(d.shown_freq(), -500 << 16, "500 ppm at most");
    d.apply(&Request { freq: 0, tick: 10_001, ..with(modes::FREQUENCY | modes::TICK) }, 0);
    assert!(d.rate().abs_diff(parts_of_ppb(100_000)) <= 64 * 1000, "a tick is 100 ppm: {}", d.rate());
}

#[test]
fn a_loop_that_is_on_takes_an_offset_and_learns_a_frequency() {
    let mut d = Discipline::start();
    assert_eq!(d.apply(&Request { offset: 1000, ..with(modes::OFFSET) }, 100).phase_ns, None, "no loop, no phase");
    d.apply(&Request { status: PLL, constant: 0, ..with(modes::STATUS | modes::TIMECONST | modes::NANO) }, 100);
    assert_eq!((d.status, d.constant), (PLL | STA_NANO, 0));
    let adjusted = d.apply(&Request { offset: 1_000_000, ..with(modes::OFFSET) }, 104);
    assert_eq!(adjusted.phase_ns, Some(1_000_000));
    // 1 ms over 4 s at time constant 0: offset * 4 / 2^8 ns a second.
    assert_eq!(d.frequency, (1_000_000 * 4) << 24);
    let mut clock = NodeClock::plain();
    d.steer(&adjusted, &mut clock);
    assert_eq!((clock.phase_ns, clock.phase_shift, clock.frequency), (1_000_000, 2, d.rate()));
    // Switching it off forgets it.
    d.apply(&Request { status: 0, ..with(modes::STATUS) }, 105);
    assert_eq!(d.status & PLL, 0);
    let far = Request { offset: 900_000_000, ..with(modes::OFFSET) };
    d.apply(&Request { status: PLL, ..with(modes::STATUS) }, 105);
    d.apply(&with(modes::NANO), 105);
    assert_eq!(d.apply(&far, 106).phase_ns, Some(500_000_000), "half a second at most");
}

#[test]
fn adjtime_replaces_what_was_left_and_can_be_read() {
    let mut d = Discipline::start();
    let set = d.apply(&Request { offset: -2500, ..with(modes::ADJTIME | modes::OFFSET) }, 0);
    assert_eq!(set, Adjusted { adjust_us: Some(-2500), ..Adjusted::default() });
    assert_eq!(d.apply(&with(modes::ADJTIME | modes::OFFSET | modes::NANO), 0), Adjusted::default());
}

#[test]
fn errors_grow_until_nobody_keeps_the_clock() {
    let mut d = Discipline::start();
    assert_eq!(d.state(0), 5);
    let good = Request { maxerror: 1000, esterror: 20, ..with(modes::STATUS | modes::MAXERROR | modes::ESTERROR) };
    d.apply(&good, 1000);
    assert_eq!((d.state(0), d.maxerror_us, d.esterror_us), (0, 1000, 20));
    d.age(1010);
    assert_eq!((d.state(0), d.maxerror_us), (0, 6000));
    d.age(1010 + 32_000);
    assert_eq!((d.state(0), d.maxerror_us, d.status & STA_UNSYNC), (5, 16_000_000, STA_UNSYNC));
    d.apply(&good, 50_000);
    d.clear(50_001);
    assert_eq!((d.state(0), d.esterror_us), (5, 16_000_000), "a step forgets");
}

#[test]
fn status_keeps_the_kernels_own_bits() {
    let mut d = Discipline::start();
    d.apply(&Request { status: 0xffff, ..with(modes::STATUS) }, 0);
    assert_eq!(d.status, 0xff);
    d.apply(&Request { constant: 37, ..with(modes::TAI) }, 0);
    assert_eq!(d.tai_s, 37);
    d.apply(&Request { constant: -1, ..with(modes::TAI) }, 0);
    assert_eq!(d.tai_s, 37);
}

/// The states that ntp_adjtime(3) describes, and the instants of kernel/time/ntp.c.
#[test]
fn leap_seconds_come_at_the_end_of_the_day() {
    const INS: u32 = 0x10;
    const DEL: u32 = 0x20;
    let noon = 20_000 * 86_400 + 43_200;
    let set = |d: &mut Discipline, status, now_s| {
        d.apply(&Request { status, ..with(modes::STATUS) }, now_s);
    };
    let mut d = Discipline::start();
    set(&mut d, INS, noon);
    assert_eq!((d.state(noon), d.state(noon + 1)), (0, 1), "from the next second on");
    assert_eq!(d.leap.due_s, 20_001 * 86_400);
    set(&mut d, 0, noon + 1);
    assert_eq!((d.leap, d.state(noon + 2)), (Leap::none(), 0), "taken back");
    set(&mut d, DEL, noon);
    assert_eq!((d.leap.due_s, d.state(noon + 1)), (20_001 * 86_400 - 1, 2));
    d.clear(noon);
    assert_eq!(d.leap.due_s, Leap::NEVER, "not after a step");
    d.leap = Leap { state: LeapState::Passes, since_s: noon, due_s: Leap::NEVER };
    (d.status, d.maxerror_us) = (INS, 0);
    for (now_s, state) in [(noon - 1, 3), (noon, 4), (noon + 100, 4)] {
        d.age(now_s);
        assert_eq!(d.state(now_s), state);
    }
    set(&mut d, INS, noon + 100);
    assert_eq!(d.state(noon + 101), 4, "one announcement, one second");
    set(&mut d, 0, noon + 101);
    assert_eq!(d.state(noon + 101), 0);
}
