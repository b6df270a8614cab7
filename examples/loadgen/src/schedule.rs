//! The schedule: when each request is meant to leave and what it asks for, all computed before the first one.
//!
//! Arrivals are a Poisson process of constant rate λ: gaps are -ln(u)/λ with u uniform on (0, 1]. Where the rate rises
//! from nothing at first, the same arrivals are moved to where the risen rate would have brought as many.
//! The generator is SplitMix64 and the logarithm is `libm`'s (not the host's), so that the same seed, stream and rate
//! give the same nanoseconds on every machine. Paths come from a generator of their own: another list of paths leaves
//! the arrival times as they were.

/// What the requests ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Paths {
    /// `/item/<id>?quantity=<1..5>`, with ids drawn uniformly from 1 to this number, which is at least 1.
    Items(u32),
    /// One of these lines, drawn uniformly; never empty.
    List(Vec<String>),
}

/// What a schedule is made from.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleSpec {
    /// Mean arrivals per second; positive and finite.
    pub rate_per_s: f64,
    pub seed: u64,
    /// Tells generators of one seed apart, such as the two load nodes of one experiment.
    pub stream: String,
    /// What the stream would bring for so long at the full rate is left out: generators that leave out each other's part
    /// share one stream.
    pub skip_ns: u64,
    pub length_ns: u64,
    /// The rate rises evenly from nothing for so long.
    pub ramp_ns: u64,
    pub paths: Paths,
}

/// One request of a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Intended send time, nanoseconds after the start of the schedule.
    pub at_ns: u64,
    pub path: String,
}

impl ScheduleSpec {
    /// All arrivals before `length_ns`, in order of time.
    pub fn arrivals(&self) -> Vec<Arrival> {
        assert!(self.rate_per_s.is_finite() && self.rate_per_s > 0.0, "rate {} is not positive", self.rate_per_s);
        let mut gaps = SplitMix64::labelled(self.seed, &self.stream, "arrivals");
        let mut choices = SplitMix64::labelled(self.seed, &self.stream, "paths");
        let mean_gap_ns = 1e9 / self.rate_per_s;
        let mut arrivals = Vec::new();
        // The sum is kept in a float: below 2^53 ns (104 days) its step is under a nanosecond.
        let mut full_rate_ns = 0.0;
        loop {
            full_rate_ns += -libm::log(gaps.unit()) * mean_gap_ns;
            let path = self.paths.draw(&mut choices);
            let since_ns = full_rate_ns - self.skip_ns as f64;
            if since_ns < 0.0 {
                continue;
            }
            let at_ns = self.ramped(since_ns);
            if at_ns >= self.length_ns as f64 {
                return arrivals;
            }
            arrivals.push(Arrival { at_ns: at_ns as u64, path });
        }
    }
}

impl ScheduleSpec {
    /// When a rate that rises for `ramp_ns` has brought as many arrivals as the full rate in `full_rate_ns`: after t of a
    /// ramp of length r it has brought as many as the full rate in t² / 2r.
    fn ramped(&self, full_rate_ns: f64) -> f64 {
        let ramp_ns = self.ramp_ns as f64;
        if full_rate_ns < ramp_ns / 2.0 {
            libm::sqrt(2.0 * ramp_ns * full_rate_ns)
        } else {
            full_rate_ns + ramp_ns / 2.0
        }
    }
}

impl Paths {
    fn draw(&self, choices: &mut SplitMix64) -> String {
        match self {
            Paths::Items(count) => {
                let id = choices.below(u64::from(*count)) + 1;
                format!("/item/{id}?quantity={}", choices.below(5) + 1)
            }
            Paths::List(lines) => lines[choices.below(lines.len() as u64) as usize].clone(),
        }
    }
}

/// Steele, Lea and Flood's SplitMix64: one 64-bit state, every seed is good.
struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator for one use of one stream of one seed.
    fn labelled(seed: u64, stream: &str, label: &str) -> Self {
        // FNV-1a over "stream/label", then one step of the generator so that near seeds part at once.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in stream.bytes().chain(*b"/").chain(label.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let mut mixer = SplitMix64(seed);
        SplitMix64(mixer.next() ^ hash)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform on (0, 1], in steps of 2^-53: never zero, so that its logarithm is finite.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform on 0..bound by multiply and shift; the bias is below bound / 2^64.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(rate_per_s: f64, seed: u64, stream: &str) -> ScheduleSpec {
        ScheduleSpec {
            rate_per_s,
            seed,
            stream: stream.to_owned(),
            length_ns: 100_000_000_000,
            skip_ns: 0,
            ramp_ns: 0,
            paths: Paths::Items(1000),
        }
    }

    /// 40 s of ramp at 500/s: half as many arrivals as without, a quarter of those in its first half, and the full rate
    /// after it. Deviations are four of Poisson's.
    #[test]
    fn a_ramp_brings_half_of_the_rate_and_rises_evenly() {
        let ramped = ScheduleSpec { ramp_ns: 40_000_000_000, ..spec(500.0, 7, "load-1") }.arrivals();
        let between = |from_s: u64, to_s: u64| {
            let (from, to) = (from_s * 1_000_000_000, to_s * 1_000_000_000);
            ramped.iter().filter(|a| (from..to).contains(&a.at_ns)).count()
        };
        assert!(ramped.is_sorted_by_key(|a| a.at_ns));
        assert!(between(0, 20).abs_diff(2_500) < 200, "{}", between(0, 20));
        assert!(between(20, 40).abs_diff(7_500) < 350, "{}", between(20, 40));
        assert!(between(40, 100).abs_diff(30_000) < 700, "{}", between(40, 100));
    }

    #[test]
    fn splitmix64_matches_the_published_vector() {
        let mut generator = SplitMix64(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| generator.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    /// Golden values: a change here changes every experiment's arrivals and must be deliberate.
    #[test]
    fn the_schedule_of_a_seed_is_fixed() {
        let arrivals = spec(90.0, 7, "load-1").arrivals();
        let head: Vec<(u64, &str)> = arrivals.iter().take(3).map(|a| (a.at_ns, a.path.as_str())).collect();
        assert_eq!(head, GOLDEN);
    }
    const GOLDEN: [(u64, &str); 3] = [
        (13_947_471, "/item/638?quantity=4"),
        (26_038_372, "/item/263?quantity=2"),
        (28_395_108, "/item/113?quantity=3"),
    ];

    #[test]
    fn windows_of_one_stream_make_the_whole() {
        let whole = ScheduleSpec { length_ns: 8_000_000_000, ..spec(300.0, 7, "all") }.arrivals();
        let window = |k: u64| {
            let part = ScheduleSpec { skip_ns: k * 2_000_000_000, length_ns: 2_000_000_000, ..spec(300.0, 7, "all") };
            part.arrivals().into_iter().map(move |a| Arrival { at_ns: a.at_ns + k * 2_000_000_000, ..a })
        };
        let parts: Vec<Arrival> = (0..4).flat_map(window).collect();
        assert_eq!(parts.len(), whole.len());
        assert!(parts.iter().zip(&whole).all(|(a, b)| a.path == b.path && a.at_ns.abs_diff(b.at_ns) <= 1));
    }

    #[test]
    fn seed_stream_and_rate_decide_the_schedule() {
        let one = spec(90.0, 7, "load-1").arrivals();
        assert_eq!(one, spec(90.0, 7, "load-1").arrivals());
        assert_ne!(one, spec(90.0, 8, "load-1").arrivals());
        assert_ne!(one, spec(90.0, 7, "load-2").arrivals());
        let listed =
            ScheduleSpec { paths: Paths::List(vec!["/a".to_owned(), "/b".to_owned()]), ..spec(90.0, 7, "load-1") };
        let times = |arrivals: &[Arrival]| arrivals.iter().map(|a| a.at_ns).collect::<Vec<_>>();
        assert_eq!(times(&one), times(&listed.arrivals()), "paths must not move arrivals");
    }

    /// 100 s at 200/s: the count is Poisson with mean 20000 and deviation 141, the gaps have a coefficient of variation
    /// of 1, a share of e^-1 of them is longer than the mean, and neighbours are independent.
    #[test]
    fn arrivals_are_poisson() {
        for seed in 0..5 {
            let arrivals = spec(200.0, seed, "").arrivals();
            assert!(arrivals.len().abs_diff(20_000) < 600, "seed {seed}: {} arrivals", arrivals.len());
            assert!(arrivals.is_sorted_by_key(|a| a.at_ns));
            let gaps: Vec<f64> = arrivals.windows(2).map(|w| (w[1].at_ns - w[0].at_ns) as f64 / 5e6).collect();
            let count = gaps.len() as f64;
            let mean = gaps.iter().sum::<f64>() / count;
            let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / count;
            let long = gaps.iter().filter(|g| **g > 1.0).count() as f64 / count;
            let neighbours = gaps.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum::<f64>() / count / variance;
            assert!((mean - 1.0).abs() < 0.03, "seed {seed}: mean gap {mean}");
            assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "seed {seed}: deviation {}", variance.sqrt());
            assert!((long - (-1.0_f64).exp()).abs() < 0.02, "seed {seed}: share of long gaps {long}");
            assert!(neighbours.abs() < 0.04, "seed {seed}: correlation of neighbours {neighbours}");
        }
    }

    #[test]
    fn streams_of_one_seed_are_unrelated() {
        let one = spec(200.0, 7, "load-1").arrivals();
        let two = spec(200.0, 7, "load-2").arrivals();
        let shared = one.iter().filter(|a| two.iter().any(|b| a.at_ns.abs_diff(b.at_ns) < 50)).count();
        // 20000 windows of 100 ns at 200/s: 0.4 expected by chance.
        assert!(shared < 8, "{shared} arrivals coincide");
    }

    #[test]
    fn items_cover_their_range() {
        let arrivals = spec(200.0, 3, "").arrivals();
        let mut seen = [0_u32; 1001];
        for arrival in &arrivals {
            let id = arrival
                .path
                .strip_prefix("/item/")
                .and_then(|p| p.split('?').next())
                .unwrap()
                .parse::<usize>()
                .unwrap();
            seen[id] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|&times| times > 0 && times < 60));
    }
}
