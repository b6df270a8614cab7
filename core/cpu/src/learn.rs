//! How a node's work grows with the sleep before it.
//!
//! It is learned from the node itself. Its own sleeps differ in length, and the CPU time of the bursts after them, told
//! apart by what the thread had waited for, shows how work grows with the sleep before it: the *curve*. A burst after a
//! real sleep of `g` is then charged what the curve says of `g / TDF`, relative to `g`. At TDF 1 nothing is changed, and
//! neither where sleeps make no difference.
//!
//! What waits for another over a link never sleeps for as little as `g / TDF`, and can't know what its work would cost
//! then. There the growth is that of all nodes of the lab together, of which some do. Evidence is weighed for each kind
//! of waiting by itself: that a server's wait for requests is sometimes short says nothing of its wait for a database.
//!
//! Who gets a stream of data, or many requests, finds more of them after a longer sleep, and has more to do: that is no
//! coldness. So bursts are compared as if each had received as much, by what those after equal sleeps cost for their data.

use alloc::vec;
use alloc::vec::Vec;

use diecast_core_abi::GAP_BINS;

use crate::SWITCHES_MAX;
use crate::cold::{DISCOUNT_MAX, WHOLE};
use crate::receive::ReceiveCounts;
use crate::sums;

/// Kinds of waiting that are told apart: hashes of the system call in which a thread slept and of where its stack was.
pub const WAIT_KINDS: usize = 32;
/// Below this bin (128 µs) the node was busy with the same work a moment ago: its bursts are parts of larger ones.
pub(crate) const BIN_MIN: usize = 7;
/// Of fewer bursts, which have aged, nothing is left to say. Kinds are many, so that a bin may have few of each.
const BURSTS_MIN: f64 = 1.0;
/// So many bursts of a kind, in a bin, may be another kind's whose hash is the same, or start-up: where there are no more they say
/// nothing. Of more, the square of what part so many are says nothing, and is taken for the mean of the kind.
const STRAYS: f64 = 3.0;
/// A curve rests on at least so many bursts, else there is none.
const CURVE_MIN: f64 = 100.0;
/// What all nodes show may be wrong for one kind of wait by this part of a burst (a standard deviation). So it counts as much
/// as the bursts of a kind, in a bin, whose mean is known as well: few where bursts are alike, many where they are not.
const PRIOR_DEVIATION: f64 = 0.25;
const PRIOR_BURSTS_MIN: f64 = 0.05;
const PRIOR_BURSTS_MAX: f64 = 30.0;
/// Before anything of a kind of wait is seen, it grows as all nodes' do, give or take this part of their growth (a standard
/// deviation).
pub(crate) const KINSHIP_DEVIATION: f64 = 0.5;
/// What is older than the sleep costs at most this part of what the sleep itself does: a node that hardly grows with it, as one
/// of pure arithmetic, has nothing else that could be cold.
const AGED_MAX: f64 = 0.5;
/// Rounds of the fit; it converges in a few.
const ROUNDS: usize = 30;
/// Growth that chance alone would show counts for nothing, and what is seen is less certain by so many times as much.
pub(crate) const CHANCE: f64 = 2.0;

/// Bursts of a node by what its thread had waited for and by how long the node had not run before.
#[derive(Clone, PartialEq, Debug)]
pub struct Bursts {
    /// How many.
    pub count: [[f64; GAP_BINS]; WAIT_KINDS],
    /// Their CPU time, real ns.
    pub cpu_ns: [[f64; GAP_BINS]; WAIT_KINDS],
    /// Sums of the squares of their CPU times, µs².
    pub square_us2: [[f64; GAP_BINS]; WAIT_KINDS],
    /// What they have received from sockets, in units of 64 bytes, each receive as 1 KiB more (`bpf-egress`).
    pub data: [[f64; GAP_BINS]; WAIT_KINDS],
    /// Sums of the squares of that.
    pub data_square: [[f64; GAP_BINS]; WAIT_KINDS],
    /// Sums of the products of that and CPU times, µs.
    pub data_us: [[f64; GAP_BINS]; WAIT_KINDS],
}

impl Default for Bursts {
    fn default() -> Bursts {
        const NONE: [[f64; GAP_BINS]; WAIT_KINDS] = [[0.0; GAP_BINS]; WAIT_KINDS];
        Bursts { count: NONE, cpu_ns: NONE, square_us2: NONE, data: NONE, data_square: NONE, data_us: NONE }
    }
}

impl Bursts {
    /// A node's receive work: each frame is a burst, all of one kind, its data in units of 256 bytes and 1 KiB more.
    pub fn of_receives(counts: &ReceiveCounts) -> Bursts {
        let mut all = Bursts::default();
        for (bin, sums) in counts.iter().enumerate() {
            let [count, ns, square, data, data_square, data_ns] = sums.map(|sum| sum as f64);
            (all.count[0][bin], all.cpu_ns[0][bin], all.square_us2[0][bin]) = (count, ns, square * 1024.0 / 1e6);
            (all.data[0][bin], all.data_square[0][bin], all.data_us[0][bin]) = (data, data_square, data_ns / 1e3);
        }
        all
    }

    /// Adds newer bursts; what was there counts `keep` of itself (0 to 1).
    pub fn age_and_add(&mut self, keep: f64, newer: &Bursts) {
        sums::age_and_add(keep, self.beside(newer));
    }

    /// How many bursts the curve could be learned from: those after a sleep that is long enough.
    pub fn telling(&self) -> f64 {
        self.count.iter().flat_map(|counts| &counts[BIN_MIN..]).sum()
    }

    /// What was added since an earlier reading of the same counts.
    pub fn since(&self, earlier: &Bursts) -> Bursts {
        let mut new = self.clone();
        sums::leave_new(new.beside(earlier));
        new
    }

    /// The same bursts without `each_ns` of each, real: what the meter adds to a switch, which work is charged without and
    /// which is no part of what grows. At least a sixteenth of the mean burst of a cell is left.
    pub fn without(mut self, each_ns: f64) -> Bursts {
        let Bursts { count, cpu_ns, square_us2, data, data_us, .. } = &mut self;
        let cells = count.iter().flatten().zip(cpu_ns.iter_mut().flatten()).zip(square_us2.iter_mut().flatten());
        let of_data = data.iter().flatten().zip(data_us.iter_mut().flatten());
        for (((count, cpu_ns), square_us2), (data, data_us)) in cells.zip(of_data) {
            let off_ns = each_ns.min(*cpu_ns / count.max(1.0) / 16.0 * SWITCHES_MAX as f64);
            let off_us = off_ns / 1e3;
            *square_us2 = (*square_us2 - 2.0 * off_us * *cpu_ns / 1e3 + *count * off_us * off_us).max(0.0);
            *cpu_ns -= *count * off_ns;
            *data_us = (*data_us - *data * off_us).max(0.0);
        }
        self
    }

    /// Each number with that of others in the same place.
    fn beside<'a>(&'a mut self, others: &'a Bursts) -> impl Iterator<Item = (&'a mut f64, &'a f64)> {
        let Bursts { count, cpu_ns, square_us2, data, data_square, data_us } = self;
        let mine = count.iter_mut().chain(cpu_ns).chain(square_us2).chain(data).chain(data_square).chain(data_us);
        let theirs = others.count.iter().chain(&others.cpu_ns).chain(&others.square_us2);
        let theirs = theirs.chain(&others.data).chain(&others.data_square).chain(&others.data_us);
        mine.flatten().zip(theirs.flatten())
    }

    /// Bins of a kind of wait that say something.
    fn told(&self, kind: usize) -> impl Iterator<Item = usize> {
        (BIN_MIN..GAP_BINS).filter(move |bin| self.count[kind][*bin] >= BURSTS_MIN)
    }

    /// Of the bursts of a cell: the sums of the squares of data's differences from their mean, of CPU time's, µs², and of the
    /// products of both.
    fn varied(&self, kind: usize, bin: usize) -> (f64, f64, f64) {
        let (n, us, data) = (self.count[kind][bin], self.cpu_ns[kind][bin] / 1e3, self.data[kind][bin]);
        (
            (self.data_square[kind][bin] - data * data / n).max(0.0),
            (self.square_us2[kind][bin] - us * us / n).max(0.0),
            self.data_us[kind][bin] - data * us / n,
        )
    }

    /// What a burst of a kind costs more for each unit of data, µs, by least squares over bursts after sleeps of the same bin;
    /// what chance alone would show counts for nothing, as in [`beyond_chance`].
    fn cost_of_data(&self, kind: usize) -> f64 {
        let (mut data, mut cpu, mut both, mut freedom) = (0.0, 0.0, 0.0, 0.0);
        for bin in self.told(kind) {
            let (of_data, of_cpu, of_both) = self.varied(kind, bin);
            data += of_data;
            cpu += of_cpu;
            both += of_both;
            freedom += self.count[kind][bin] - 1.0;
        }
        if data <= 0.0 || both <= 0.0 {
            return 0.0;
        }
        let slope = both / data;
        let variance = (cpu - slope * both).max(0.0) / (freedom - 1.0).max(1.0);
        let by_chance = CHANCE * variance / data;
        more_than_chance(slope, by_chance)
    }

    /// How CPU time grows with the sleep before it: a factor per bin, never falling, whose mean over what the node did is
    /// about 1; all 1 where there is no evidence.
    ///
    /// Each kind has a curve of its own: its mean burst in each bin, in which `others`, the curve of all nodes
    /// ([`curve_of_all`]), counts like some bursts ([`PRIOR_DEVIATION`]) and decides alone where the kind has none; neighbours that
    /// fall are pooled. The node's curve is the mean of its kinds', each counting by its CPU time.
    pub fn curve(&self, others: &[f64; GAP_BINS]) -> [f64; GAP_BINS] {
        let own = cells(self);
        if own.iter().map(|c| c.count).sum::<f64>() < CURVE_MIN {
            return [1.0; GAP_BINS];
        }
        let all_ns: f64 = own.iter().map(|c| c.cpu_ns).sum();
        let mut curve = [0.0; GAP_BINS];
        for of_kind in own.chunk_by(|a, b| a.kind == b.kind) {
            let cpu_ns: f64 = of_kind.iter().map(|c| c.cpu_ns).sum();
            for (sum, value) in curve.iter_mut().zip(curve_of_kind(of_kind, others)) {
                *sum += value * cpu_ns / all_ns;
            }
        }
        curve
    }
}

/// The curve of one kind, 1 in the mean of its bursts.
fn curve_of_kind(of_kind: &[Cell], others: &[f64; GAP_BINS]) -> [f64; GAP_BINS] {
    let at_evidence: f64 = of_kind.iter().map(|c| c.count * others[c.bin]).sum();
    let level_ns = of_kind.iter().map(|c| c.cpu_ns).sum::<f64>() / at_evidence;
    let spread = Spread::of(of_kind);
    let kinship = kinship(of_kind, others, level_ns, spread.variance_us2 * 1e6);
    let level_of_all = at_evidence / of_kind.iter().map(|c| c.count).sum::<f64>();
    let of_others = others.map(|o| (level_of_all + kinship * (o - level_of_all)) * level_ns);
    let mut curve = of_others;
    let prior = spread.prior_bursts();
    let mut weight = [prior; GAP_BINS];
    let (mut own, mut count) = (of_others, [0.0; GAP_BINS]);
    for c in of_kind {
        (own[c.bin], count[c.bin]) = (c.cpu_ns / c.count, c.count);
        weight[c.bin] += c.count;
        curve[c.bin] = (c.cpu_ns + curve[c.bin] * prior) / weight[c.bin];
    }
    never_falling(&mut curve, &weight);
    never_falling(&mut own, &count);
    let part = beyond_chance(&own, &of_others, &count, spread.variance_us2 * 1e6);
    for (value, other) in curve.iter_mut().zip(of_others) {
        *value = other + part * (*value - other);
    }
    let bursts: f64 = of_kind.iter().map(|c| c.count).sum();
    let mean_ns = of_kind.iter().map(|c| c.count * curve[c.bin]).sum::<f64>() / bursts;
    curve.map(|v| if mean_ns > 0.0 { v / mean_ns } else { 1.0 })
}

/// How much of the growth that all nodes show a kind of wait has too, 0 to 1, by what can be seen of both: the slope of its
/// means over those of all, about 1 where little is seen ([`KINSHIP_DEVIATION`]).
fn kinship(of_kind: &[Cell], others: &[f64; GAP_BINS], level_ns: f64, variance: f64) -> f64 {
    let bursts: f64 = of_kind.iter().map(|c| c.count).sum();
    let mean = |value: &dyn Fn(&Cell) -> f64| of_kind.iter().map(|c| c.count * value(c)).sum::<f64>() / bursts;
    let (of_all, own) = (|c: &Cell| others[c.bin] * level_ns, |c: &Cell| c.cpu_ns / c.count);
    let (mean_of_all, mean_own) = (mean(&of_all), mean(&own));
    let varies = mean(&|c| (of_all(c) - mean_of_all) * (of_all(c) - mean_of_all)) * bursts;
    let together = mean(&|c| (of_all(c) - mean_of_all) * (own(c) - mean_own)) * bursts;
    // Bayes' rule for two normal distributions.
    let expected = variance / (KINSHIP_DEVIATION * KINSHIP_DEVIATION);
    if varies + expected > 0.0 { ((together + expected) / (varies + expected)).clamp(0.0, 1.0) } else { 1.0 }
}

/// What of a value, 0 at least, is more than chance, whose squares would be `by_chance` (as in James and Stein's estimator).
pub(crate) fn more_than_chance(value: f64, by_chance: f64) -> f64 {
    if value > 0.0 && value * value > by_chance { value - by_chance / value } else { 0.0 }
}

/// How much of the difference between a rising curve that was fitted to means of `count` values and another is more than
/// chance: 0 to 1.
///
/// A fit that can only rise finds growth in noise. With values of that variance the differences' weighted squares would by
/// chance be about one for each step of the fit, so a share of [`CHANCE`] times that is no evidence (as in James and Stein's
/// estimator).
fn beyond_chance(fitted: &[f64; GAP_BINS], from: &[f64; GAP_BINS], count: &[f64; GAP_BINS], variance: f64) -> f64 {
    let known = || (0..GAP_BINS).filter(|b| count[*b] > 0.0);
    let squares: f64 = known().map(|b| count[b] * (fitted[b] - from[b]) * (fitted[b] - from[b])).sum();
    let steps = known().zip(known().skip(1)).filter(|(a, b)| fitted[*a] < fitted[*b]).count();
    let by_chance = CHANCE * steps.max(1) as f64 * variance;
    if squares > by_chance { 1.0 - by_chance / squares } else { 0.0 }
}

/// How much bursts of one kind differ that came after sleeps of one bin.
struct Spread {
    variance_us2: f64,
    mean_us: f64,
}

impl Spread {
    fn of(of_kind: &[Cell]) -> Spread {
        let (mut bursts, mut varied_us2, mut sum_us) = (0.0, 0.0, 0.0);
        for c in of_kind {
            let mean_us = c.cpu_ns / c.count / 1e3;
            bursts += c.count;
            sum_us += c.cpu_ns / 1e3;
            varied_us2 += (c.square_us2 - c.count * mean_us * mean_us).max(0.0);
        }
        // A mean takes one of the values' freedom.
        let freedom = (bursts - of_kind.len() as f64).max(1.0);
        Spread { variance_us2: varied_us2 / freedom, mean_us: sum_us / bursts }
    }

    fn relative_variance(&self) -> f64 {
        self.variance_us2 / (self.mean_us * self.mean_us).max(1e-6)
    }

    /// How many bursts what all nodes show counts for: those whose mean is known to [`PRIOR_DEVIATION`].
    fn prior_bursts(&self) -> f64 {
        let bursts = self.relative_variance() / (PRIOR_DEVIATION * PRIOR_DEVIATION);
        bursts.clamp(PRIOR_BURSTS_MIN, PRIOR_BURSTS_MAX)
    }
}

/// The curve of several nodes together, in which each kind of wait of each node counts by its bursts, not by their size.
/// Bins without evidence take their neighbour's value.
pub fn curve_of_all<'a>(nodes: impl Iterator<Item = &'a Bursts>) -> [f64; GAP_BINS] {
    let mut all: Vec<Cell> = Vec::new();
    // Of each kind of each node: CPU time and bursts.
    let mut sums: Vec<(f64, f64)> = Vec::new();
    // Bursts, and the sum of their squares' differences from their means', in mean bursts.
    let (mut bursts_of_all, mut varied) = (0.0, 0.0);
    for (node, bursts) in nodes.enumerate() {
        sums.resize((node + 1) * WAIT_KINDS, (0.0, 0.0));
        let own = cells(bursts);
        for of_kind in own.chunk_by(|a, b| a.kind == b.kind) {
            let count: f64 = of_kind.iter().map(|c| c.count).sum();
            bursts_of_all += count;
            varied += count * Spread::of(of_kind).relative_variance();
        }
        for cell in own {
            let kind = node * WAIT_KINDS + cell.kind;
            sums[kind].0 += cell.cpu_ns;
            sums[kind].1 += cell.count;
            all.push(Cell { kind, ..cell });
        }
    }
    for cell in &mut all {
        let (cpu_ns, count) = sums[cell.kind];
        cell.cpu_ns /= cpu_ns / count;
    }
    let Fit { mut curve, weight } = Fit::of(&all);
    never_falling(&mut curve, &weight);
    let known: f64 = weight.iter().sum();
    if known > 0.0 {
        let mean = curve.iter().zip(&weight).map(|(v, w)| v * w).sum::<f64>() / known;
        let part = beyond_chance(&curve, &[mean; GAP_BINS], &weight, varied / bursts_of_all);
        curve = curve.map(|v| mean + part * (v - mean));
    }
    curve
}

/// Bursts of one kind after sleeps of one bin.
#[derive(Clone, Copy)]
struct Cell {
    kind: usize,
    bin: usize,
    count: f64,
    cpu_ns: f64,
    square_us2: f64,
}

/// The cells that say something, as if each burst of a kind had received as much, and without [`STRAYS`]. At least a sixteenth of
/// a cell's mean burst is left of it for its data.
fn cells(bursts: &Bursts) -> Vec<Cell> {
    let of_kind = |kind: usize| {
        let sum = |values: &[f64; GAP_BINS]| bursts.told(kind).map(|bin| values[bin]).sum::<f64>();
        let usual = sum(&bursts.data[kind]) / sum(&bursts.count[kind]);
        let each_us = bursts.cost_of_data(kind);
        let as_usual = bursts.told(kind).map(|bin| {
            let (count, us) = (bursts.count[kind][bin], bursts.cpu_ns[kind][bin] / 1e3);
            let (data, cpu, both) = bursts.varied(kind, bin);
            let more_us = each_us * (bursts.data[kind][bin] - count * usual);
            let us = (us - more_us).max(us / 16.0);
            let varied_us2 = (cpu - 2.0 * each_us * both + each_us * each_us * data).max(0.0);
            Cell { kind, bin, count, cpu_ns: us * 1e3, square_us2: varied_us2 + us * us / count }
        });
        without_strays(as_usual.collect())
    };
    (0..WAIT_KINDS).flat_map(of_kind).collect()
}

/// The cells of one kind without what may be strays ([`STRAYS`]).
fn without_strays(mut of_kind: Vec<Cell>) -> Vec<Cell> {
    let own = |c: &Cell| {
        let strays = (STRAYS / c.count).min(1.0);
        1.0 - strays * strays
    };
    of_kind.retain(|c| own(c) > 0.0);
    let all = |value: &dyn Fn(&Cell) -> f64| of_kind.iter().map(|c| own(c) * value(c)).sum::<f64>();
    let usual_us = all(&|c| c.cpu_ns) / 1e3 / all(&|c| c.count);
    for c in &mut of_kind {
        let (own, mean_us) = (own(c), c.cpu_ns / 1e3 / c.count);
        let varied_us2 = (c.square_us2 - c.count * mean_us * mean_us).max(0.0);
        let mean_us = own * mean_us + (1.0 - own) * usual_us;
        c.count *= own;
        c.cpu_ns = c.count * mean_us * 1e3;
        c.square_us2 = own * varied_us2 + c.count * mean_us * mean_us;
    }
    of_kind
}

/// A curve and what each of its values rests on: the CPU time of its bursts if there were no growth.
struct Fit {
    curve: [f64; GAP_BINS],
    weight: [f64; GAP_BINS],
}

impl Fit {
    fn of(cells: &[Cell]) -> Fit {
        let kinds = cells.iter().map(|c| c.kind + 1).max().unwrap_or(0);
        let mut fit = Fit { curve: [1.0; GAP_BINS], weight: [0.0; GAP_BINS] };
        for _ in 0..ROUNDS {
            // Of each kind: CPU time, and the same of bursts of size 1.
            let mut sums = vec![(0.0, 0.0); kinds];
            for c in cells {
                sums[c.kind].0 += c.cpu_ns;
                sums[c.kind].1 += c.count * fit.curve[c.bin];
            }
            let (mut time, mut flat) = ([0.0; GAP_BINS], [0.0; GAP_BINS]);
            for c in cells {
                let (cpu_ns, expected) = sums[c.kind];
                time[c.bin] += c.cpu_ns;
                flat[c.bin] += if expected > 0.0 { c.count * cpu_ns / expected } else { 0.0 };
            }
            for b in 0..GAP_BINS {
                fit.curve[b] = if flat[b] > 0.0 { time[b] / flat[b] } else { 1.0 };
            }
            fit.weight = flat;
        }
        fit
    }
}

/// Pools neighbours until the values rise or stay (isotonic regression); values without weight take their lower
/// neighbour's, the first ones the first's that has any.
fn never_falling(values: &mut [f64; GAP_BINS], weight: &[f64; GAP_BINS]) {
    // Pools so far: weighted mean, weight, first bin.
    let (mut pools, mut used) = ([(0.0, 0.0, 0usize); GAP_BINS], 0);
    for (bin, (v, w)) in values.iter().zip(weight).enumerate().filter(|(_, (_, w))| **w > 0.0) {
        let mut pool = (*v, *w, bin);
        while used > 0 && pools[used - 1].0 >= pool.0 {
            let (v, w, first) = pools[used - 1];
            pool = ((v * w + pool.0 * pool.1) / (w + pool.1), w + pool.1, first);
            used -= 1;
        }
        pools[used] = pool;
        used += 1;
    }
    let pools = &pools[..used];
    let Some((lowest, ..)) = pools.first() else { return };
    for (bin, v) in values.iter_mut().enumerate() {
        *v = pools.iter().rev().find(|(_, _, first)| *first <= bin).map_or(*lowest, |p| p.0);
    }
}

/// What a burst after a real sleep in each bin costs less after a TDF-th of it, in parts of [`WHOLE`], rounded down. `aged` is
/// what older ages leave of it, which are a TDF-th too ([`crate::Ages::factor`]).
///
/// Bins stand for their middle (1.5 x 2^bin µs); between two middles the curve is straight.
pub fn discounts(curve: &[f64; GAP_BINS], aged: f64, tdf: f64) -> [u32; GAP_BINS] {
    let middle_us = |bin: usize| 1.5 * (1u64 << bin) as f64;
    let at_us = |us: f64| {
        // Below the first bin there is no evidence: its bursts would be parts of larger ones.
        let us = us.max(middle_us(BIN_MIN));
        let above = (0..GAP_BINS).find(|b| middle_us(*b) >= us);
        match above {
            Some(0) => curve[0],
            Some(b) => {
                let part = (us - middle_us(b - 1)) / (middle_us(b) - middle_us(b - 1));
                curve[b - 1] + part * (curve[b] - curve[b - 1])
            }
            None => curve[GAP_BINS - 1],
        }
    };
    core::array::from_fn(|bin| {
        let (here, there) = (curve[bin], at_us(middle_us(bin) / tdf));
        let warm = if here > 0.0 && there < here { there / here } else { 1.0 };
        let older = (1.0 - aged).min(AGED_MAX * (1.0 - warm));
        let part = 1.0 - warm * (1.0 - older);
        ((part * WHOLE as f64) as u32).min(DISCOUNT_MAX as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gap_bin;

    fn discounts(curve: &[f64; GAP_BINS], tdf: f64) -> [u32; GAP_BINS] {
        super::discounts(curve, 1.0, tdf)
    }

    /// Bursts of two kinds, of 100 and 300 µs give or take a half, that cost more after longer sleeps; the kinds sleep
    /// differently.
    fn bursts(growth: impl Fn(usize) -> f64) -> Bursts {
        let mut b = Bursts::default();
        for bin in BIN_MIN..18 {
            for (kind, size_us, n) in [(1, 100.0, if bin < 14 { 50.0 } else { 5000.0 }), (2, 300.0, 900.0)] {
                b.count[kind][bin] = n;
                b.cpu_ns[kind][bin] = n * size_us * 1e3 * growth(bin);
                b.square_us2[kind][bin] = n * (size_us * growth(bin)).powi(2) * 1.25;
            }
        }
        b
    }

    #[test]
    fn older_ages_take_off_half_of_what_the_sleep_does_at_most() {
        let curve = core::array::from_fn(|bin| if bin < 12 { 0.6 } else { 1.0 });
        let of = |aged: f64| super::discounts(&curve, aged, 16.0)[14] as f64 / WHOLE as f64;
        assert!((of(1.0) - 0.4).abs() < 1e-3, "{}", of(1.0));
        assert!((of(0.9) - (1.0 - 0.6 * 0.9)).abs() < 1e-3, "{}", of(0.9));
        assert!((of(0.5) - (1.0 - 0.6 * 0.8)).abs() < 1e-3, "{}", of(0.5));
        assert_eq!(super::discounts(&FLAT, 0.5, 16.0), [0; GAP_BINS], "without growth there is nothing to be cold");
        assert_eq!(super::discounts(&curve, 0.5, 1.0), [0; GAP_BINS]);
    }

    /// A stream's receiver: after a sleep twice as long there is twice as much, give or take a half, and 3 µs of work with each
    /// unit of it. That its other work grows with the sleep is found.
    #[test]
    fn more_data_is_no_coldness() {
        let largest = |other_us: f64, growth: f64, units_known: bool| {
            let mut own = Bursts::default();
            for bin in BIN_MIN..15 {
                let cold = growth.powi(bin as i32 - 10);
                for part in 0..10 {
                    let units = (1u64 << bin) as f64 / 256.0 * (0.55 + 0.1 * f64::from(part));
                    // Work differs by a tenth for other reasons.
                    let us = (other_us * cold + 3.0 * units) * if part % 2 == 0 { 0.9 } else { 1.1 };
                    own.count[3][bin] += 50.0;
                    own.cpu_ns[3][bin] += 50.0 * us * 1e3;
                    own.square_us2[3][bin] += 50.0 * us * us;
                    if units_known {
                        own.data[3][bin] += 50.0 * units;
                        own.data_square[3][bin] += 50.0 * units * units;
                        own.data_us[3][bin] += 50.0 * units * us;
                    }
                }
            }
            let d = discounts(&own.curve(&curve_of_all([&own].into_iter())), 10.0);
            f64::from(*d.iter().max().unwrap()) / WHOLE as f64
        };
        assert!(largest(50.0, 1.0, false) > 0.4, "{}", largest(50.0, 1.0, false));
        assert!(largest(50.0, 1.0, true) < 0.05, "{}", largest(50.0, 1.0, true));
        let grown = 1.0 - 1.15f64.powf(-(10f64.log2()));
        let found = largest(1000.0, 1.15, true);
        assert!((grown * 0.7..grown * 1.05).contains(&found), "{found} of {grown}");
    }

    /// Requests of all sizes, whose work does not depend on them, after sleeps of all lengths.
    #[test]
    fn data_that_costs_nothing_changes_nothing() {
        let mut own = bursts(|bin| if bin < 12 { 1.0 } else { 1.5 });
        let plain = own.curve(&FLAT);
        for bin in BIN_MIN..18 {
            let (n, us) = (own.count[2][bin], own.cpu_ns[2][bin] / 1e3 / own.count[2][bin]);
            let units = bin as f64;
            own.data[2][bin] = n * units;
            own.data_square[2][bin] = n * units * units * 1.25;
            own.data_us[2][bin] = n * units * us;
        }
        for (with, without) in own.curve(&FLAT).into_iter().zip(plain) {
            assert!((with / without - 1.0).abs() < 1e-6, "{with} {without}");
        }
    }

    #[test]
    fn bursts_after_short_sleeps_tell_nothing() {
        let mut b = bursts(|_| 1.0);
        let telling = b.telling();
        assert_eq!(telling, 7.0 * 50.0 + 4.0 * 5000.0 + 11.0 * 900.0);
        b.count[1][BIN_MIN - 1] += 9.0;
        assert_eq!(b.telling(), telling);
    }

    #[test]
    fn what_a_switch_adds_is_taken_off_each_burst() {
        let plain = bursts(|bin| bin as f64);
        let mut more = plain.clone();
        for kind in [1, 2] {
            for bin in BIN_MIN..18 {
                let (n, ns) = (plain.count[kind][bin], plain.cpu_ns[kind][bin]);
                more.cpu_ns[kind][bin] += n * 7e3;
                more.square_us2[kind][bin] += 2.0 * 7.0 * ns / 1e3 + n * 49.0;
            }
        }
        let back = more.without(7e3);
        for kind in [1, 2] {
            for bin in BIN_MIN..18 {
                assert!((back.cpu_ns[kind][bin] / plain.cpu_ns[kind][bin] - 1.0).abs() < 1e-9);
                assert!((back.square_us2[kind][bin] / plain.square_us2[kind][bin] - 1.0).abs() < 1e-9);
            }
        }
        let little = plain.clone().without(1e12);
        assert!((little.cpu_ns[1][BIN_MIN] / plain.cpu_ns[1][BIN_MIN] - 1.0 / 16.0).abs() < 1e-9);
        assert!(little.cpu_ns[3][BIN_MIN] == 0.0 && little.square_us2[1][BIN_MIN] >= 0.0);
    }

    const FLAT: [f64; GAP_BINS] = [1.0; GAP_BINS];

    #[test]
    fn bins_are_powers_of_two_of_a_microsecond() {
        assert_eq!((gap_bin(0), gap_bin(1_999), gap_bin(2_000), gap_bin(3_999)), (0, 0, 1, 1));
        assert_eq!((gap_bin(1_024_000), gap_bin(u64::MAX)), (10, GAP_BINS - 1));
    }

    #[test]
    fn a_curve_is_found_though_kinds_of_work_sleep_differently() {
        let step = |bin: usize| if bin < 11 { 1.0 } else { 2.0 };
        let node = bursts(step);
        let c = node.curve(&curve_of_all([&node].into_iter()));
        for (bin, value) in c.iter().enumerate().take(18) {
            let relative = value / c[BIN_MIN];
            assert!((relative - step(bin)).abs() < 0.01, "bin {bin}: {relative}");
        }
        // A sleep of 12 ms stands for one of 1.2 ms, on the way up; one of 100 ms for one of 10 ms, which is as cold.
        let d = discounts(&c, 10.0);
        assert_eq!(d[BIN_MIN], 0);
        assert!((28_000..=32_768).contains(&d[13]), "{}", d[13]);
        assert_eq!(d[17], 0);
    }

    #[test]
    fn nothing_is_taken_off_without_growth_without_dilation_or_without_evidence() {
        assert_eq!(discounts(&bursts(|_| 1.0).curve(&FLAT), 10.0), [0; GAP_BINS]);
        assert_eq!(discounts(&bursts(|bin| bin as f64).curve(&FLAT), 1.0), [0; GAP_BINS]);
        let mut few = Bursts::default();
        few.age_and_add(1.0, &bursts(|bin| bin as f64));
        few.age_and_add(0.0001, &Bursts::default());
        assert_eq!(few.curve(&FLAT), [1.0; GAP_BINS]);
    }

    /// A node of few short sleeps beside others whose work doubles.
    #[test]
    fn what_others_show_counts_by_how_much_bursts_differ() {
        let others = core::array::from_fn(|bin| if bin < 12 { 0.5 } else { 1.0 });
        let largest = |relative_variance: f64| {
            let mut own = Bursts::default();
            for bin in BIN_MIN..17 {
                let n = if bin < 12 { 4.0 } else { 200.0 };
                own.count[1][bin] = n;
                own.cpu_ns[1][bin] = n * 500e3;
                own.square_us2[1][bin] = n * 500.0 * 500.0 * (1.0 + relative_variance);
            }
            let d = discounts(&own.curve(&others), 10.0);
            f64::from(*d[11..15].iter().max().unwrap()) / WHOLE as f64
        };
        assert!(largest(0.001) < 0.02, "{}", largest(0.001));
        assert!((0.2..0.5).contains(&largest(1.0)), "{}", largest(1.0));
    }

    /// Bursts of 5 ms that differ by as much, whatever the sleep before: a hundred of them, and ten thousand.
    #[test]
    fn what_chance_shows_is_no_growth() {
        // Any fixed sequence will do: exponential sizes, so that the deviation is the mean.
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 1.0) / (1u64 << 53) as f64
        };
        let mut mean_of_largest = |bursts: usize, growth: f64| {
            let labs = 40;
            let mut sum = 0.0;
            for _ in 0..labs {
                let mut own = Bursts::default();
                for _ in 0..bursts {
                    let bin = 9 + (random() * 8.0) as usize;
                    let us = -random().ln() * 5_000.0 * if bin < 13 { 1.0 } else { growth };
                    own.count[3][bin] += 1.0;
                    own.cpu_ns[3][bin] += us * 1e3;
                    own.square_us2[3][bin] += us * us;
                }
                let d = discounts(&own.curve(&curve_of_all([&own].into_iter())), 10.0);
                sum += f64::from(*d.iter().max().unwrap()) / WHOLE as f64;
            }
            sum / f64::from(labs)
        };
        let (few, many) = (mean_of_largest(120, 1.0), mean_of_largest(10_000, 1.0));
        assert!(few < 0.06 && many < 0.01, "{few} and {many}");
        let (seen, clear) = (mean_of_largest(1_000, 1.3), mean_of_largest(10_000, 1.3));
        assert!((0.1..0.26).contains(&seen) && (0.18..0.26).contains(&clear), "{seen} and {clear}");
    }

    /// What is taken off at most of bursts of some kinds: of each, bins with how many bursts of how many µs, which differ by a tenth.
    fn most_off(kinds: &[&[(usize, f64, f64)]], others: Option<[f64; GAP_BINS]>) -> f64 {
        let mut own = Bursts::default();
        for (kind, cells) in kinds.iter().enumerate() {
            for (bin, n, us) in *cells {
                own.count[kind][*bin] = *n;
                own.cpu_ns[kind][*bin] = n * us * 1e3;
                own.square_us2[kind][*bin] = n * us * us * 1.01;
            }
        }
        let others = others.unwrap_or_else(|| curve_of_all([&own].into_iter()));
        f64::from(*discounts(&own.curve(&others), 10.0).iter().max().unwrap()) / WHOLE as f64
    }

    /// Bursts of one size, and some of a twentieth after a shorter sleep: of another kind whose hash is the same, while they are few.
    #[test]
    fn a_few_bursts_show_no_growth() {
        let largest = |odd: f64| most_off(&[&[(9, odd, 20.0), (12, 120.0, 400.0)]], None);
        for few in [1.0, 1.1, 2.0, 3.0] {
            assert!(largest(few) < 0.01, "{few}: {}", largest(few));
        }
        let more = [4.0, 6.0, 12.0, 30.0].map(largest);
        assert!(more.is_sorted() && more[0] < 0.5 && more[3] > 0.7, "{more:?}");
    }

    /// Of a kind that has few bursts the strays are many; and few bursts after each of many sleeps don't show that there is no growth.
    #[test]
    fn a_few_bursts_show_nothing() {
        let strays = most_off(&[&[(12, 110.0, 400.0)], &[(9, 3.0, 20.0), (12, 10.0, 400.0)]], None);
        assert!(strays < 0.01, "{strays}");
        let thin: Vec<_> = (9..14).map(|bin| (bin, 3.0, 250.0)).chain([(15, 200.0, 500.0)]).collect();
        let growth = most_off(&[&thin], Some(core::array::from_fn(|bin| if bin < 14 { 0.5 } else { 1.0 })));
        assert!((0.45..0.55).contains(&growth), "{growth}");
    }

    /// A server's bursts are all of one size after sleeps of 1 ms and more; shorter ones it has none. Its client's double.
    #[test]
    fn growth_that_a_kind_does_not_have_where_it_is_seen_it_does_not_have_elsewhere() {
        let others = core::array::from_fn(|bin| if bin < 9 { 0.5 } else { 1.0 + 0.1 * (bin.min(16) as f64 - 9.0) });
        let largest = |sizes_us: [f64; 2], bins: core::ops::Range<usize>| {
            let mut own = Bursts::default();
            for bin in bins {
                own.count[3][bin] = 30.0;
                own.cpu_ns[3][bin] = 15.0 * (sizes_us[0] + sizes_us[1]) * 1e3;
                own.square_us2[3][bin] = 15.0 * (sizes_us[0] * sizes_us[0] + sizes_us[1] * sizes_us[1]);
            }
            f64::from(*discounts(&own.curve(&others), 10.0)[11..13].iter().max().unwrap()) / WHOLE as f64
        };
        assert!(largest([1000.0; 2], 9..17) < 0.01, "{}", largest([1000.0; 2], 9..17));
        assert!(largest([500.0, 1500.0], 9..17) < 0.2, "{}", largest([500.0, 1500.0], 9..17));
        // Where all nodes' don't grow, nothing is seen.
        assert!(largest([500.0, 1500.0], 16..20) > 0.3, "{}", largest([500.0, 1500.0], 16..20));
    }

    /// Sleeps whose TDF-th is shorter than any that tells something are taken for the shortest that do.
    #[test]
    fn nothing_is_asked_below_the_first_bin() {
        let curve = core::array::from_fn(|bin| if bin < BIN_MIN { 0.1 } else { 1.0 });
        assert_eq!(discounts(&curve, 1000.0), [0; GAP_BINS]);
    }

    #[test]
    fn work_that_shrinks_with_the_sleep_is_left_alone() {
        let c = bursts(|bin| 20.0 - bin as f64).curve(&FLAT);
        assert!(c.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(discounts(&c, 10.0), [0; GAP_BINS]);
    }

    /// One node waits for a link of 8 ms at least; the other has sleeps of all lengths.
    #[test]
    fn what_a_node_cannot_know_it_takes_from_all() {
        let growth = |bin: usize| 1.3f64.powi(bin.min(14) as i32);
        let all = bursts(growth);
        let mut far = all.clone();
        for kind in 0..WAIT_KINDS {
            far.count[kind][..13].fill(0.0);
            far.cpu_ns[kind].iter_mut().for_each(|t| *t *= 4.0);
        }
        let others = curve_of_all([&all, &far].into_iter());
        let relative = |c: &[f64; GAP_BINS], from: usize, to: usize| c[to] / c[from];
        assert!((relative(&others, 9, 14) / 1.3f64.powi(5) - 1.0).abs() < 0.03, "{others:?}");
        assert_eq!(relative(&far.curve(&FLAT), 9, 12), 1.0, "it has no evidence of its own");
        let known = far.curve(&others);
        assert!((relative(&known, 9, 14) / 1.3f64.powi(5) - 1.0).abs() < 0.05, "{known:?}");
        // Half of its work waits for requests, which sometimes come soon and cost no less; the other half waits for a link.
        let mut half = far.clone();
        for bin in BIN_MIN..18 {
            half.count[1][bin] = 200.0;
            half.cpu_ns[1][bin] = 200.0 * 400e3;
        }
        let links: f64 = half.cpu_ns[2].iter().sum();
        half.cpu_ns[1].iter_mut().for_each(|t| *t *= links / (11.0 * 200.0 * 400e3));
        let flat = relative(&half.curve(&others), 9, 14);
        assert!(flat > 1.3 && flat < 1.3f64.powi(5) * 0.8, "{flat}");
        // What it knows itself is stronger.
        let steady = bursts(|_| 1.0).curve(&others);
        assert!((0.98..1.1).contains(&relative(&steady, 9, 14)), "{steady:?}");
    }
}
