//! Rates: exact where the arithmetic is, monotone and invertible everywhere.

use diecast_core_clock::{NodeClock, parts_of_ppb, ppb_of_parts};

const S: u64 = 1_000_000_000;

fn drifting(ppb: i64) -> NodeClock {
    NodeClock { from_v_ns: 5 * S, mono_ns: 7 * S, raw_ns: 9 * S, drift: parts_of_ppb(ppb), ..NodeClock::plain() }
}

#[test]
fn a_drift_of_100_ppm_gains_100_us_a_second() {
    let c = drifting(100_000);
    let after = c.mono_of(6 * S) - c.mono_of(5 * S);
    assert!(after.abs_diff(S + 100_000) <= 1, "{after}");
    let day = c.mono_of(5 * S + 86_400 * S) - 7 * S;
    assert!(day.abs_diff(86_400 * S + 8_640_000_000) <= 1000, "{day}");
    assert_eq!(c.raw_of(6 * S) - 9 * S, after, "RAW counts the same oscillator");
    for ppb in [-100_000_000, -31_415_927, -1, 0, 1, 999, 100_000_000] {
        assert_eq!(ppb_of_parts(parts_of_ppb(ppb)), ppb);
    }
}

#[test]
fn frequency_is_not_on_the_raw_clock() {
    let c = NodeClock { frequency: parts_of_ppb(-500_000), ..drifting(200_000) };
    assert!((c.mono_of(15 * S) - 7 * S).abs_diff(10 * S - 3_000_000) <= 1);
    assert!((c.raw_of(15 * S) - 9 * S).abs_diff(10 * S + 2_000_000) <= 1);
}

#[test]
fn adjtime_gains_500_us_a_second_and_stops() {
    let c = NodeClock { adjust_ns: -1_500_000, ..drifting(0) };
    assert!((c.mono_of(6 * S) - 7 * S).abs_diff(S - 500_000) <= 1);
    assert!(c.adjust_left(6 * S).abs_diff(-1_000_000) <= 1);
    assert_eq!(c.mono_of(9 * S) - 7 * S, 4 * S - 1_500_000);
    assert_eq!(c.adjust_left(9 * S), 0);
}

#[test]
fn the_loop_takes_its_share_of_the_phase_each_second() {
    let c = NodeClock { phase_ns: 16_000_000, phase_shift: 4, ..drifting(0) };
    // A sixteenth of 16 ms, evenly; then of 15 ms.
    assert!((c.mono_of(5 * S + S / 2) - 7 * S).abs_diff(S / 2 + 500_000) <= 2);
    assert!((c.mono_of(6 * S) - 7 * S).abs_diff(S + 1_000_000) <= 2);
    assert!((c.mono_of(7 * S) - 7 * S).abs_diff(2 * S + 1_937_500) <= 2);
    assert!(c.phase_left(7 * S).abs_diff(16_000_000 - 1_937_500) <= 2);
    let done = c.mono_of(1000 * S) - 7 * S - 995 * S;
    assert!(done.abs_diff(16_000_000) < 17, "{done}");
}

fn random(g: &mut fastrand::Rng) -> NodeClock {
    let some = |g: &mut fastrand::Rng, max: i64| if g.bool() { g.i64(-max..=max) } else { 0 };
    NodeClock {
        from_v_ns: g.u64(..1 << 50),
        mono_ns: g.u64(1 << 40..1 << 50),
        raw_ns: g.u64(1 << 40..1 << 50),
        drift: parts_of_ppb(some(g, 100_000_000)),
        frequency: parts_of_ppb(some(g, 100_500_000)),
        adjust_ns: some(g, 10_000_000_000),
        phase_ns: some(g, 500_000_000),
        phase_shift: g.u64(2..=12),
    }
}

#[test]
fn every_clock_is_monotone_and_its_inverse_the_smallest_instant() {
    for seed in 0..3000 {
        let mut g = fastrand::Rng::with_seed(seed);
        let c = random(&mut g);
        for _ in 0..30 {
            // Around whole seconds too, where the loop's steps meet.
            let bits = g.u32(1..45);
            let near = if g.bool() { g.u64(..100) * S } else { 0 };
            let v = (c.from_v_ns + near + g.u64(..1 << bits)).saturating_sub(g.u64(..3));
            assert!(c.mono_of(v + 1) >= c.mono_of(v), "back at {v}, seed {seed}: {c:?}");
            assert!(c.raw_of(v + 1) >= c.raw_of(v), "raw back at {v}, seed {seed}: {c:?}");
            let m = c.mono_of(v) + g.u64(..2);
            let back = c.v_of_mono(m);
            assert!(c.mono_of(back) >= m, "early: seed {seed} {c:?} v {v}");
            assert!(back == 0 || c.mono_of(back - 1) < m, "not the smallest: seed {seed} {c:?} v {v}");
            let span = g.u64(..1 << bits);
            let v_span = c.span_in(span);
            assert!(c.span_out(v_span) >= span, "span early: seed {seed} {c:?} {span}");
        }
    }
}

#[test]
fn written_down_anew_it_goes_on_as_before() {
    for seed in 0..1000 {
        let mut g = fastrand::Rng::with_seed(seed);
        let c = random(&mut g);
        let at = c.from_v_ns + g.u64(..100 * S);
        let d = c.at(at);
        assert_eq!(d.mono_of(at), c.mono_of(at), "seed {seed}");
        assert_eq!(d.raw_of(at), c.raw_of(at), "seed {seed}");
        let later = at + g.u64(..1000 * S);
        // The loop's seconds begin anew: what it gains within one differs by a share of its share.
        let slack = 4 + (c.phase_ns.unsigned_abs() >> c.phase_shift);
        assert!(d.mono_of(later).abs_diff(c.mono_of(later)) <= slack, "seed {seed}: {c:?} {d:?}");
    }
}
