//! Hazards: by position, the probability that a draft is accepted if all before it were.

use super::logit::{MOST, ONE, sigmoid};
use crate::{Digest, POSITIONS, Seen};

/// Most rows at risk that count. A large batch knows its acceptance no better than the next
/// change of its requests lets it.
const MOST_ROWS: u32 = 512;
/// Variance of the level before anything was seen, and after a change.
const OPEN: i64 = ONE;
/// Gain of the level's variance with every step.
const LEVEL_DRIFT: i64 = ONE / 500;
/// Variance between the levels of requests.
const BETWEEN: i64 = ONE / 4;
/// Inverse of the level's weight in its long-run mean.
const MEAN_RATE: i64 = 128;
/// Variance of a position's shape before the position was seen; its gain with every step; and
/// its least value after a change.
const SHAPE_OPEN: i64 = ONE / 2;
const SHAPE_DRIFT: i64 = ONE / 5000;
const SHAPE_CHANGE: i64 = ONE / 20;
/// Shift of the level that is looked for, up and down, in logits.
const SHIFT: i64 = 3 * ONE / 2;
/// Log-likelihood at which a change is believed: by chance at most once in e^5 steps.
const BELIEVED: i64 = 5 * ONE;

/// Tokens of a row by depth, from 0, in fixed point.
pub(super) type Tokens = [i64; POSITIONS + 1];

/// Hazards by position: `logit h[j] = level + shape[j]`, in natural logits.
///
/// The level is the first position's logit and follows fast, by a Kalman filter with a random
/// walk over binomial counts. Its variance opens again when requests take the places of others,
/// and when counts say that something has changed (CUSUM of log-likelihoods: Page 1954). The
/// shape follows slowly. A position that was not proposed has no count at all, so deeper
/// positions than the present depth are foretold by the level and the last known shape
/// (censoring respected).
///
/// Drafters may propose fewer positions than asked, such as n-grams without a match. The share
/// of rows with a proposal is kept separately for each position.
#[derive(Debug)]
pub(super) struct Hazards {
    level: i64,
    variance: i64,
    /// Long-run mean of the level: the expectation for requests that were not seen yet.
    mean: i64,
    shape: [i64; POSITIONS],
    shape_variance: [i64; POSITIONS],
    /// Number of leading positions that were seen at all.
    known: usize,
    /// Log-likelihood gained by a level that is shifted up, and down.
    evidence: [i64; 2],
    /// By position: share of the rows that reached it, within the step's depth, and proposed a
    /// draft there.
    coverage: [i64; POSITIONS],
}

/// A position's counts of one step, in fixed point.
#[derive(Clone, Copy, Default)]
struct Count {
    at_risk: i64,
    accepted: i64,
}

impl Count {
    fn new(seen: &Seen, at: usize) -> Self {
        let (at_risk, accepted) = (seen.at_risk[at], seen.accepted[at]);
        let accepted = i64::from(accepted.min(at_risk));
        let counted = i64::from(at_risk.min(MOST_ROWS));
        Self {
            at_risk: counted * ONE,
            accepted: accepted * counted * ONE / i64::from(at_risk.max(1)),
        }
    }

    /// Returns the accepted drafts beyond the expected ones, and the variance of that.
    fn innovation(self, hazard: i64) -> (i64, i64) {
        let expected = self.at_risk / ONE * hazard;
        let variance = expected / ONE * (ONE - hazard) + expected % ONE * (ONE - hazard) / ONE;
        (self.accepted - expected, variance)
    }
}

impl Hazards {
    pub fn new() -> Self {
        Self {
            level: ONE / 2,
            variance: OPEN,
            mean: ONE / 2,
            shape: [0; POSITIONS],
            shape_variance: [SHAPE_OPEN; POSITIONS],
            known: 0,
            evidence: [0; 2],
            coverage: [ONE; POSITIONS],
        }
    }

    /// Takes in a step's counts.
    pub fn observe(&mut self, seen: &Seen) {
        self.variance = (self.variance + LEVEL_DRIFT).min(OPEN);
        for variance in &mut self.shape_variance {
            *variance = (*variance + SHAPE_DRIFT).min(SHAPE_OPEN);
        }
        self.observe_coverage(seen);
        let (mut counts, mut positions) = ([Count::default(); POSITIONS], 0);
        for (at, count) in counts.iter_mut().enumerate() {
            *count = Count::new(seen, at);
            if count.at_risk > 0 {
                positions = at + 1;
            }
        }
        let counts = &counts[..positions];
        for at in self.known..positions {
            self.shape[at] = self.last_shape();
            self.known = at + 1;
        }
        self.follow_level(counts);
        self.follow_shape(counts);
        if positions > 0 {
            self.mean += (self.level - self.mean) / MEAN_RATE;
        }
    }

    /// Takes in that `joined` of `rows` rows took the places of others. The level is the mean
    /// of all rows' levels, and each new level is drawn around the long-run mean.
    pub fn turn_over(&mut self, joined: u32, rows: u32) {
        let rows = i64::from(rows).clamp(1, i64::from(MOST_ROWS));
        let joined = i64::from(joined).min(rows);
        let change = 2 * BETWEEN * joined / (rows * rows);
        self.variance = (self.variance + change).min(OPEN);
        // The level moves only half way: successive requests are often alike.
        self.level += (self.mean - self.level) * joined / (2 * rows);
    }

    /// Returns the hazard at a position, from the first, in 65,536ths.
    pub fn hazard(&self, at: usize) -> i64 {
        self.hazard_at(at, 0)
    }

    /// Returns the share of rows for which anything is proposed.
    pub fn coverage(&self) -> i64 {
        self.coverage[0]
    }

    /// Returns the variance of a position's logit.
    fn variance(&self, at: usize) -> i64 {
        self.variance + self.shape_variance[at]
    }

    /// Returns the expected tokens of a row at each depth, `1 + Σ Π h`. If `hopeful`, logits
    /// are raised by their standard deviation.
    pub fn tokens(&self, hopeful: bool) -> Tokens {
        let mut tokens = [ONE; POSITIONS + 1];
        let mut survival = ONE;
        for at in 0..POSITIONS {
            let raise = if hopeful {
                deviation(self.variance(at))
            } else {
                0
            };
            let hazard = self.hazard_at(at, raise);
            survival = survival * hazard / ONE * self.coverage[at] / ONE;
            tokens[at + 1] = tokens[at] + survival;
        }
        tokens
    }

    pub fn digest(&self, digest: &mut Digest) {
        let numbers = [
            self.level,
            self.variance,
            self.mean,
            self.evidence[0],
            self.evidence[1],
        ];
        for list in [
            &numbers[..],
            &self.shape,
            &self.shape_variance,
            &self.coverage,
        ] {
            for number in list {
                digest.word(*number as u64);
            }
        }
        digest.word(self.known as u64);
    }

    fn hazard_at(&self, at: usize, raise: i64) -> i64 {
        let shape = if at < self.known {
            self.shape[at]
        } else {
            self.last_shape()
        };
        sigmoid(self.level + shape + raise)
    }

    fn last_shape(&self) -> i64 {
        self.known.checked_sub(1).map_or(0, |last| self.shape[last])
    }

    fn follow_level(&mut self, counts: &[Count]) {
        let (mut innovation, mut information) = (0, 0);
        for (at, count) in counts.iter().enumerate() {
            let (more, variance) = count.innovation(self.hazard(at));
            innovation += more;
            information += variance;
        }
        if information == 0 {
            return;
        }
        if self.has_changed(counts) {
            self.variance = OPEN;
            for variance in &mut self.shape_variance {
                *variance = (*variance).max(SHAPE_CHANGE);
            }
        }
        let spread = ONE + times(self.variance, information);
        let step = times(self.variance, innovation) * ONE / spread;
        self.level = (self.level + step.clamp(-2 * ONE, 2 * ONE)).clamp(-MOST, MOST);
        self.variance = (self.variance * ONE / spread).max(1);
    }

    /// Returns true if counts have become likely enough with the level shifted.
    fn has_changed(&mut self, counts: &[Count]) -> bool {
        for (evidence, shift) in [SHIFT, -SHIFT].into_iter().enumerate() {
            let mut more = 0;
            for (at, count) in counts.iter().enumerate() {
                // ln((1 + e^(x + s)) / (1 + e^x)) is the hazard's integral (Simpson).
                let [from, middle, to] = [0, 1, 2].map(|half| self.hazard_at(at, shift * half / 2));
                let mean = (from + 4 * middle + to) / 6;
                more += times(shift, count.accepted - count.at_risk / ONE * mean);
            }
            let sum = &mut self.evidence[evidence];
            *sum = (*sum + more).clamp(0, BELIEVED + ONE);
        }
        let changed = self.evidence.iter().any(|sum| *sum > BELIEVED);
        if changed {
            self.evidence = [0; 2];
        }
        changed
    }

    /// Moves the shapes of the positions by the residual that the level leaves. A shift of all
    /// positions, which is the first one's shape, goes into the level.
    fn follow_shape(&mut self, counts: &[Count]) {
        for (at, count) in counts.iter().enumerate() {
            let (innovation, information) = count.innovation(self.hazard(at));
            let variance = self.shape_variance[at];
            let spread = ONE + times(variance, information);
            let step = times(variance, innovation) * ONE / spread;
            let shape = self.shape[at] + step.clamp(-ONE, ONE);
            self.shape[at] = shape.clamp(-MOST, MOST);
            self.shape_variance[at] = (variance * ONE / spread).max(1);
        }
        let first = self.shape[0];
        self.level = (self.level + first).clamp(-MOST, MOST);
        for shape in &mut self.shape[..self.known] {
            *shape = (*shape - first).clamp(-MOST, MOST);
        }
    }

    fn observe_coverage(&mut self, seen: &Seen) {
        let mut reached = seen.telling();
        for at in 0..(seen.depth as usize).min(POSITIONS) {
            if reached > 0 {
                let proposed = i64::from(seen.at_risk[at].min(reached));
                let share = proposed * ONE / i64::from(reached);
                let weight = i64::from(reached.min(8));
                self.coverage[at] += (share - self.coverage[at]) * weight / 32;
            }
            reached = seen.accepted[at];
        }
    }
}

/// Returns the product of two numbers in fixed point. Counts are capped, so that it fits.
fn times(a: i64, b: i64) -> i64 {
    a * b / ONE
}

fn deviation(variance: i64) -> i64 {
    (variance.max(0) * ONE).isqrt()
}
