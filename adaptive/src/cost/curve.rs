//! One monotone curve of time over size.

mod envelope;
mod proof;

use super::{contrast::Shown, mul_div};
use proof::Proof;

/// One in fixed point with 16 binary places.
const ONE: u64 = 1 << 16;
/// Additional binary places of levels and shapes: short steps change them little.
const FINE: u32 = 16;
/// Largest size and time; larger ones count as these, so that products fit in 64 bits.
const MOST_SIZE: u32 = 1 << 20;
const MOST_NS: u64 = 1 << 42;

/// Difference that counts as chance between the few steps compared at a change of depth.
const CHANCE: i64 = ONE as i64 / 8;
/// Weight of the time measured before serving at the first change of depth, in steps.
const KNOWN: i64 = 8;
/// Changes of depth after which the weight of the next one falls no further: the n-th has the
/// weight 1/n.
const MOST_COMPARED: u8 = 7;

/// Limits and rates for the corrections of a curve.
#[derive(Debug, PartialEq, Eq)]
struct Trust {
    /// Least and greatest ratio of a knot's time to its base.
    least: u64,
    most: u64,
    /// Largest error of one step that counts, so that an outlier moves a curve no further than
    /// an ordinary slow step does (Huber's clipping).
    most_off: u64,
    /// Inverse of a step's weight in the level of the whole curve.
    level_rate: i64,
    /// Inverse of a step's weight in the shape of the two knots beside its size.
    shape_rate: i64,
    /// Nanoseconds from which a step has full weight. A shorter step has less, in proportion.
    full_weight_ns: u64,
}

/// Limits for times that were measured before serving and have [proved](Proof) right: they are
/// corrected by at most 35 %.
const MEASURED: Trust = Trust {
    least: ONE * 65 / 100,
    most: ONE * 135 / 100,
    most_off: ONE / 4,
    level_rate: 200,
    shape_rate: 300,
    // Other programs slow the machine for seconds, which are thousands of short steps.
    full_weight_ns: 20_000_000,
};

/// Limits for learnt times: the first step of a size may have been an outlier.
const LEARNT: Trust = Trust {
    least: ONE / 16,
    most: ONE * 16,
    most_off: ONE / 2,
    level_rate: 64,
    shape_rate: 8,
    full_weight_ns: 1,
};

/// Time over size, rising or flat: linear between knots.
///
/// The time at knot `i` is `base[i] · level · shape[i]`. The level belongs to the whole curve,
/// so that corrections of one size (a slower machine, longer contexts) hold for the others too.
/// Then violations of the order are pooled (isotonic regression, pool adjacent violators).
///
/// The curve believes only the lower [`envelope`] of the times measured before serving, until
/// the first steps of a size while serving say otherwise ([`Proof`]).
#[derive(Debug, Clone)]
pub(super) struct Curve {
    /// Sizes of the knots, ascending.
    sizes: Vec<u32>,
    /// Nanoseconds before correction, rising; zero for unknown knots.
    base: Vec<u64>,
    /// Nanoseconds measured before serving, and by knot the steps that have tested them.
    before: Vec<u64>,
    proofs: Vec<Proof>,
    shape: Vec<u64>,
    /// By knot: number of changes of depth that have corrected it.
    compared: Vec<u8>,
    level: u64,
    trust: &'static Trust,
    /// Corrected nanoseconds, rising; zero for unknown knots.
    now: Vec<u64>,
    /// Blocks of equal values while pooling: sum of the values, and number of knots.
    blocks: Vec<(u64, u64)>,
}

impl Curve {
    /// Makes a curve through measured points of size and nanoseconds. Without points it has
    /// empty knots, which fill as steps are seen.
    pub fn new(points: impl Iterator<Item = (u32, u64)>) -> Self {
        let mut points: Vec<_> = points
            .map(|(size, ns)| (size.clamp(1, MOST_SIZE), ns.clamp(1, MOST_NS)))
            .collect();
        points.sort_unstable();
        let mut sizes = Vec::new();
        let mut base = Vec::new();
        for same in points.chunk_by(|a, b| a.0 == b.0) {
            sizes.push(same[0].0);
            base.push(same[0].1);
        }
        let trust = if sizes.is_empty() { &LEARNT } else { &MEASURED };
        if sizes.is_empty() {
            sizes.extend((0..=MOST_SIZE.ilog2()).flat_map(halves));
            base.resize(sizes.len(), 0);
        }
        envelope::lower(&sizes, &mut base);
        Self {
            shape: vec![ONE << FINE; sizes.len()],
            compared: vec![0; sizes.len()],
            proofs: vec![Proof::default(); sizes.len()],
            now: base.clone(),
            before: base.clone(),
            blocks: Vec::with_capacity(sizes.len()),
            level: ONE << FINE,
            sizes,
            base,
            trust,
        }
    }

    /// Returns the nanoseconds at `size`.
    pub fn at(&self, size: u32) -> Option<u64> {
        let last = self.sizes.len() - 1;
        let known = || self.now.iter().position(|ns| *ns > 0);
        if let Some(first) = known().filter(|first| size < self.sizes[*first]) {
            return Some(self.below(size, first));
        }
        if size <= self.sizes[last] || self.base[last] == 0 {
            return interpolate(&self.sizes, &self.now, size);
        }
        // Beyond the largest knot, the curve is corrected as at that knot.
        let known = match *self.trust == MEASURED {
            true => &self.before,
            false => &self.base,
        };
        let factor = mul_div(self.now[last], ONE, known[last]);
        let more = interpolate(&self.sizes, known, size)?.saturating_sub(known[last]);
        let more = mul_div(more, factor, ONE);
        Some(self.now[last].saturating_add(more).min(MOST_NS))
    }

    /// Returns the time of a size below knot `first`, the lowest known one. A measured curve is
    /// flat there. While learning, half of the time counts as proportional to the size, so that
    /// small sizes get their try.
    fn below(&self, size: u32, first: usize) -> u64 {
        let value = self.now[first];
        if *self.trust == MEASURED {
            return value;
        }
        let part = value * u64::from(size) / u64::from(self.sizes[first]);
        (value + part) / 2
    }

    /// Returns the nanoseconds at `size` as measured before serving.
    pub fn before(&self, size: u32) -> Option<u64> {
        (*self.trust == MEASURED)
            .then(|| interpolate(&self.sizes, &self.before, size))
            .flatten()
    }

    /// Returns true if steps of about this size have run while serving. Also true if nothing
    /// was measured before that they could prove wrong.
    pub fn is_proven(&self, size: u32) -> bool {
        let (_, _, near) = self.beside(size);
        *self.trust == LEARNT || self.proofs[near].is_proven()
    }

    /// Takes over the correction of another time that was measured together with this curve,
    /// unless steps have proved something of this curve.
    pub fn follow(&mut self, ratio: u64) {
        let nothing = self.proofs.iter().all(|proof| !proof.is_proven());
        if *self.trust == MEASURED && nothing {
            self.scale(ratio, None);
        }
    }

    /// Tests the measured time of a size by a step. Its part took `ns` of the step's `step_ns`,
    /// and nothing else can have taken this time. Returns the right part of the measured time,
    /// in fixed point, if the test shows that the time is wrong.
    pub fn prove(&mut self, size: u32, ns: u64, step_ns: u64) -> Option<u64> {
        if *self.trust == LEARNT {
            return None;
        }
        let (size, ns) = (size.clamp(1, MOST_SIZE), ns.clamp(1, MOST_NS));
        let expected = interpolate(&self.sizes, &self.base, size)?.max(1);
        let (_, _, near) = self.beside(size);
        let ratio = self.proofs[near].observe(ns, expected, step_ns)?;
        self.scale(ratio, Some(near));
        Some(ratio)
    }

    /// Multiplies the uncorrected times of one knot and of all unproven knots by `ratio`.
    fn scale(&mut self, ratio: u64, near: Option<usize>) {
        for at in 0..self.sizes.len() {
            if near == Some(at) || !self.proofs[at].is_proven() {
                // Other programs only make steps longer, so no time was measured too short.
                let old = self.base[at];
                let new = mul_div(old, ratio, ONE).clamp(old.min(1), self.before[at]);
                self.base[at] = new;
                self.shape[at] = ONE << FINE;
                self.proofs[at].expect(new, old);
            }
        }
        envelope::keep_rising(&mut self.base, &self.proofs);
        self.refresh();
    }

    /// Corrects the curve by a step of `size`, whose part took `ns` of the step's `step_ns`.
    pub fn correct(&mut self, size: u32, ns: u64, step_ns: u64) {
        let (size, ns) = (size.clamp(1, MOST_SIZE), ns.clamp(1, MOST_NS));
        let (left, right, near) = self.beside(size);
        if self.base[near] == 0 {
            self.base[near] = (ns * ONE / (self.level >> FINE)).clamp(1, MOST_NS);
        } else if let Some(expected) = self.at(size) {
            let most_off = self.trust.most_off;
            let ratio = (ns * ONE / expected.max(1)).clamp(ONE - most_off, ONE + most_off);
            let Trust {
                level_rate,
                shape_rate,
                full_weight_ns,
                ..
            } = *self.trust;
            let weight = step_ns.min(full_weight_ns) * ONE / full_weight_ns;
            let ratio = (ratio * weight + ONE * (ONE - weight)) / ONE;
            self.level = self.nudge(self.level, ratio, level_rate);
            self.shape[left] = self.nudge(self.shape[left], ratio, shape_rate);
            if right != left {
                self.shape[right] = self.nudge(self.shape[right], ratio, shape_rate);
            }
        }
        self.refresh();
    }

    /// Returns the nanoseconds at `size`, if the curve was measured before serving.
    pub fn measured_at(&self, size: u32) -> Option<u64> {
        (*self.trust == MEASURED).then(|| self.at(size)).flatten()
    }

    /// Corrects the time of a size by the result of a change of depth. Returns the factor, in
    /// fixed point.
    pub fn reshape(&mut self, shown: Shown) -> u64 {
        let (left, right, near) = self.beside(shown.size.clamp(1, MOST_SIZE));
        let off = shown.relative as i64 - ONE as i64;
        let off = off - off.clamp(-CHANCE, CHANCE);
        let (steps, before) = (shown.steps as i64, i64::from(self.compared[near]));
        self.compared[near] = (before as u8 + 1).min(MOST_COMPARED);
        let off = off * steps / (steps + KNOWN) / (before + 1);
        let run = u64::from(self.sizes[right] - self.sizes[left]);
        let over = u64::from(shown.size.saturating_sub(self.sizes[left])).min(run);
        let of_right = over * ONE / run.max(1);
        for (knot, part) in [(left, ONE - of_right), (right, of_right)] {
            let factor = ONE.saturating_add_signed(off * part as i64 / ONE as i64);
            let shape = mul_div(self.shape[knot], factor, ONE);
            self.shape[knot] = shape.clamp(self.trust.least << FINE, self.trust.most << FINE);
        }
        self.refresh();
        ONE.saturating_add_signed(off)
    }

    /// Returns true if the nearest knot has been seen.
    pub fn knows(&self, size: u32) -> bool {
        let (_, _, near) = self.beside(size);
        self.base[near] > 0
    }

    /// Returns the knots on both sides of `size`, and the nearer of the two.
    fn beside(&self, size: u32) -> (usize, usize, usize) {
        let right = self.sizes.partition_point(|knot| *knot <= size);
        let left = right.saturating_sub(1);
        let right = right.min(self.sizes.len() - 1);
        let nearer = size.abs_diff(self.sizes[left]) <= size.abs_diff(self.sizes[right]);
        (left, right, if nearer { left } else { right })
    }

    /// Moves `factor` by 1/`rate` of the way to `factor · ratio`.
    fn nudge(&self, factor: u64, ratio: u64, rate: i64) -> u64 {
        let change = (factor as i64) * (ratio as i64 - ONE as i64) / (rate * ONE as i64);
        let factor = factor.saturating_add_signed(change);
        factor.clamp(self.trust.least << FINE, self.trust.most << FINE)
    }

    fn refresh(&mut self) {
        let Trust { least, most, .. } = *self.trust;
        for (at, now) in self.now.iter_mut().enumerate() {
            let factor = ((self.level >> FINE) * (self.shape[at] >> FINE) / ONE).clamp(least, most);
            let base = self.base[at];
            *now = (base * factor / ONE).clamp(base.min(1), MOST_NS);
        }
        self.pool();
    }

    /// Makes `now` rising: neighbours in the wrong order take their mean.
    fn pool(&mut self) {
        self.blocks.clear();
        for value in self.now.iter().filter(|value| **value > 0) {
            let mut block = (*value, 1);
            while let Some(last) = self
                .blocks
                .pop_if(|last| last.0 * block.1 > block.0 * last.1)
            {
                block = (block.0 + last.0, block.1 + last.1);
            }
            self.blocks.push(block);
        }
        let mut blocks = self.blocks.iter();
        let (mut mean, mut left) = (0, 0);
        for value in self.now.iter_mut().filter(|value| **value > 0) {
            if left == 0 {
                let (sum, count) = blocks.next().copied().unwrap_or((0, 1));
                (mean, left) = (sum / count, count);
            }
            *value = mean;
            left -= 1;
        }
    }
}

/// Returns 2^`power` and one and a half times that.
fn halves(power: u32) -> impl Iterator<Item = u32> {
    let size = 1 << power;
    let middle = size + size / 2;
    [Some(size), (size > 1).then_some(middle)]
        .into_iter()
        .flatten()
}

/// Interpolates between the known knots beside `size`. Beyond the last known knot the last
/// slope goes on, and below the first one its value holds.
fn interpolate(sizes: &[u32], values: &[u64], size: u32) -> Option<u64> {
    let size = size.min(MOST_SIZE);
    let right = sizes.partition_point(|knot| *knot < size);
    let known = |at: &usize| values[*at] > 0;
    let above = (right..sizes.len()).find(known);
    let below = (0..right).rev().find(known);
    let (from, to) = match (below, above) {
        (None, None) => return None,
        (None, Some(only)) => (only, only),
        (Some(from), Some(to)) => (from, to),
        (Some(last), None) => ((0..last).rev().find(known).unwrap_or(last), last),
    };
    let run = u64::from(sizes[to] - sizes[from]);
    if run == 0 {
        return Some(values[to]);
    }
    let rise = values[to].saturating_sub(values[from]);
    let value = values[from] + rise * u64::from(size - sizes[from]) / run;
    Some(value.min(MOST_NS))
}
