//! The most likely tokens of a row, without sorting it.

use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub token: u32,
    /// Distance below the largest logit, in units of the temperature: ≤ 0.
    pub score: f32,
    /// `exp(score)`.
    pub weight: f32,
}

/// Histogram cells per unit of score; cells cover `CELLS / PER_UNIT` units.
const PER_UNIT: f32 = 8.0;
const CELLS: usize = 256;

/// Scratch for [`Candidates::select`].
#[derive(Debug)]
pub(crate) struct Candidates {
    counts: [u32; CELLS],
    masses: [f64; CELLS],
    pub list: Vec<Candidate>,
}

impl Candidates {
    pub fn new() -> Self {
        Self {
            counts: [0; CELLS],
            masses: [0.0; CELLS],
            list: Vec::new(),
        }
    }

    /// Puts into `list` the shortest run of the most likely tokens that holds
    /// `count` tokens or `mass` of weight, whichever is reached first, most
    /// likely first, lowest id first among equals.
    ///
    /// A histogram over scores finds the least likely cell that is needed;
    /// only tokens of that and better cells are collected and sorted.
    pub fn select(&mut self, scores: &[f32], weights: &[f32], count: usize, mass: f64) {
        let cut = self.needed_cells(scores, weights, count, mass);
        self.list.clear();
        for (token, (score, weight)) in scores.iter().zip(weights).enumerate() {
            if *weight > 0.0 && cell(*score) < cut {
                self.list.push(Candidate {
                    token: token as u32,
                    score: *score,
                    weight: *weight,
                });
            }
        }
        if self.list.len() > count && count > 0 {
            self.list.select_nth_unstable_by(count - 1, order);
            self.list.truncate(count);
        }
        self.list.sort_unstable_by(order);
        let mut sum = 0.0;
        let enough = self.list.iter().position(|candidate| {
            sum += f64::from(candidate.weight);
            sum >= mass
        });
        if let Some(last) = enough {
            self.list.truncate(last + 1);
        }
    }

    /// The weight of all that is in `list`.
    pub fn total(&self) -> f64 {
        self.list.iter().map(|c| f64::from(c.weight)).sum()
    }

    /// How many cells hold `count` tokens or a little more than `mass`.
    fn needed_cells(&mut self, scores: &[f32], weights: &[f32], count: usize, mass: f64) -> usize {
        self.counts.fill(0);
        self.masses.fill(0.0);
        for (score, weight) in scores.iter().zip(weights) {
            if *weight > 0.0 {
                let cell = cell(*score);
                self.counts[cell] += 1;
                self.masses[cell] += f64::from(*weight);
            }
        }
        // The sums here run in another order than those over the sorted list;
        // the margin keeps a difference in rounding from losing a token.
        let margin = mass * (1.0 + 1e-9);
        let (mut tokens, mut sum) = (0, 0.0);
        for cell in 0..CELLS {
            tokens += self.counts[cell] as usize;
            sum += self.masses[cell];
            if tokens >= count || sum >= margin {
                return cell + 1;
            }
        }
        CELLS
    }
}

/// Index of a score's cell; better scores have lower cells. Adding 2²³ rounds
/// to an integer, which then stands in the low bits: cheaper than a cast,
/// which has to mind NaN and overflow.
fn cell(score: f32) -> usize {
    const ROUND: f32 = 8_388_608.0;
    let distance = (-score * PER_UNIT).min((CELLS - 1) as f32);
    ((distance + ROUND).to_bits() as usize) % CELLS
}

/// Most likely first, lowest id first among equals.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.score.total_cmp(&a.score).then(a.token.cmp(&b.token))
}
