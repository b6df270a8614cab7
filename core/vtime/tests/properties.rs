//! Properties of the map, over seeded random segments: inverse, monotone, never early, saturation.

use diecast_core_vtime::{FrameMap, Rate, RealNs, RealSpan, Segment, Tdf, TdfError, VirtNs, VirtSpan};

/// The seed is in the failure message.
struct Rng(fastrand::Rng);
impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }
    fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }
    fn tdf(&mut self) -> Tdf {
        loop {
            if let Ok(t) = Tdf::new(1 + self.below(1000), 1 + self.below(100)) {
                return t;
            }
        }
    }
}

#[test]
fn inverse_is_the_smallest_instant_and_never_early() {
    for seed in 0..2000 {
        let mut g = Rng::new(seed);
        let tdf = g.tdf();
        let s = Segment::new(RealNs(g.below(1 << 50)), VirtNs(g.below(1 << 50)), tdf);
        for _ in 0..20 {
            let bits = 1 + g.below(52);
            let v = VirtNs(s.v0_ns + g.below(1 << bits));
            let r = s.r_of(v);
            assert!(s.v_of(r) >= v, "early: seed {seed} tdf {tdf} v {v:?} r {r:?}");
            if r.0 > s.r0_ns {
                assert!(s.v_of(RealNs(r.0 - 1)) < v, "not smallest: seed {seed} tdf {tdf}");
            }
            if tdf.num() >= tdf.den() {
                assert_eq!(s.v_of(r), v, "round trip for TDF >= 1: seed {seed} tdf {tdf}");
            }
        }
    }
}

#[test]
fn equals_exact_division_for_213_days() {
    for seed in 0..2000 {
        let mut g = Rng::new(seed);
        let tdf = g.tdf();
        let s = Segment::new(RealNs(0), VirtNs(0), tdf);
        let x = g.below(1 << 54);
        let exact = u128::from(x) * u128::from(tdf.den()) / u128::from(tdf.num());
        assert_eq!(u128::from(s.v_of(RealNs(x)).0), exact, "seed {seed} tdf {tdf} x {x}");
    }
}

/// Real and virtual spans of every magnitude up to 2^63 ns, 292 years: at most 1 ns of virtual time beyond the exact value.
#[test]
fn instants_of_every_magnitude() {
    for seed in 0..20_000 {
        let mut g = Rng::new(seed);
        let tdf = g.tdf();
        let (num, den) = (u128::from(tdf.num()), u128::from(tdf.den()));
        let s = Segment::new(RealNs(g.below(1 << 62)), VirtNs(g.below(1 << 62)), tdf);
        let bits = 1 + g.below(63);
        let span = g.below(1 << bits);
        let at = format!("seed {seed} tdf {tdf} start {s:?} span {span}");

        let v = s.v_of(RealNs(s.r0_ns + span));
        let exact = u128::from(s.v0_ns) + u128::from(span) * den / num;
        let most = u128::from(u64::MAX);
        assert!(u128::from(v.0) >= exact.min(most) && u128::from(v.0) <= (exact + 1).min(most), "{at}: {v:?}");
        assert!(s.v_of(RealNs(s.r0_ns + span + 1)) >= v, "went back: {at}");

        let v = VirtNs(s.v0_ns + span);
        let (r, exact) = (s.r_of(v), (u128::from(span) * num).div_ceil(den));
        if r == RealNs::NEVER {
            assert!(exact >= 1 << 63, "{at}: {exact} ns is no eternity");
            continue;
        }
        assert!(s.v_of(r) >= v, "early: {at}");
        assert!(r.0 == s.r0_ns || s.v_of(RealNs(r.0 - 1)) < v, "not smallest: {at}");
        let short = exact.abs_diff(u128::from(r.0 - s.r0_ns));
        assert!(short <= num.div_ceil(den), "{at}: {short} ns from the exact instant");
    }
}

#[test]
fn monotone_and_continuous_over_retimes_and_pauses() {
    for seed in 0..500 {
        let mut g = Rng::new(seed);
        let mut at = g.below(1 << 40);
        let mut f = FrameMap::start(RealNs(at), g.tdf());
        for _ in 0..20 {
            at += g.below(1 << 34);
            let before = f.v_of(RealNs(at));
            if g.below(3) == 0 {
                f.pause(RealNs(at)).unwrap()
            } else {
                f.retime(RealNs(at), g.tdf()).unwrap()
            }
            assert_eq!(f.v_of(RealNs(at)), before, "jump: seed {seed}");
        }
        f.retime(RealNs(at), Tdf::ONE).unwrap();
        let mut last = VirtNs(0);
        let mut r = f.segments()[0].r0_ns.saturating_sub(1 << 20);
        while r < at + (1 << 34) {
            let v = f.v_of(RealNs(r));
            assert!(v >= last, "went back: seed {seed} r {r}");
            let back = f.r_of(v);
            assert!(back.0 <= r && f.v_of(back) >= v, "inverse: seed {seed} r {r}");
            last = v;
            r += 1 + g.below(1 << 32);
        }
    }
}

#[test]
fn worked_example_and_no_drift_at_tdf_10() {
    let s = Segment::new(RealNs(100), VirtNs(7), Tdf::new(10, 1).unwrap());
    assert_eq!(s.v_of(RealNs(119)), VirtNs(8));
    assert_eq!(s.r_of(VirtNs(8)), RealNs(110));
    let ten_days = 864_000_000_000_000;
    assert_eq!(s.v_of(RealNs(100 + ten_days)), VirtNs(7 + ten_days / 10));
}

#[test]
fn saturation_pause_and_times_before_the_start() {
    let s = Segment::new(RealNs(1000), VirtNs(1000), Tdf::new(1, 100).unwrap());
    assert_eq!(s.v_of(RealNs(u64::MAX)), VirtNs::NEVER);
    assert_eq!(s.v_of(RealNs(400)), VirtNs(400));
    assert_eq!(s.r_of(VirtNs(0)), RealNs(0));
    let t = Segment::new(RealNs(0), VirtNs(0), Tdf::new(1000, 1).unwrap());
    assert_eq!(t.r_of(VirtNs::NEVER), RealNs::NEVER);
    let p = Segment::paused(RealNs(5), VirtNs(9));
    assert_eq!(p.v_of(RealNs(1 << 60)), VirtNs(9));
    assert_eq!(p.r_of(VirtNs(10)), RealNs::NEVER);
    assert_eq!(p.r_of(VirtNs(9)), RealNs(5));
    assert_eq!(Rate::ZERO.mul_floor(u64::MAX), 0);
}

#[test]
fn spans_round_up_in_and_down_out() {
    let t: Tdf = "3/2".parse().unwrap();
    assert_eq!(t.to_real(VirtSpan(1)), RealSpan(2));
    assert_eq!(t.to_virt(RealSpan(2)), VirtSpan(1));
    assert_eq!(t.to_real(VirtSpan(u64::MAX)), RealSpan(u64::MAX));
    for seed in 0..2000 {
        let mut g = Rng::new(seed);
        let tdf = g.tdf();
        let v = VirtSpan(g.below(1 << 50));
        assert!(tdf.to_virt(tdf.to_real(v)) >= v, "span too short: seed {seed} tdf {tdf}");
    }
}

#[test]
fn tdf_texts() {
    assert_eq!("10".parse::<Tdf>().unwrap().to_string(), "10");
    assert_eq!("0.5".parse::<Tdf>().unwrap().to_string(), "1/2");
    assert_eq!("2.50".parse::<Tdf>().unwrap().to_string(), "5/2");
    assert_eq!("0.01".parse::<Tdf>().unwrap().to_string(), "1/100");
    for (text, why) in [
        ("0", TdfError::OutOfRange),
        ("0.001", TdfError::OutOfRange),
        ("1001", TdfError::OutOfRange),
        ("1/0", TdfError::OutOfRange),
        ("", TdfError::NotANumber),
        ("-1", TdfError::NotANumber),
        ("ten", TdfError::NotANumber),
        ("1.", TdfError::NotANumber),
        ("1.1234567", TdfError::TooFine),
        ("99999999999999999999", TdfError::OutOfRange),
    ] {
        assert_eq!(text.parse::<Tdf>(), Err(why), "{text}");
    }
}
