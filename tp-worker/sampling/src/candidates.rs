//! The most likely tokens of a row, without sorting it.

use std::cmp::Ordering;

use crate::mass::{MassScale, first_beyond};

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub token: u32,
    /// Likelihood relative to the most likely token's: in (0, 1].
    pub weight: f32,
}

/// Number of low bits of a weight that its cell drops. A cell of the histogram is an eighth of
/// a power of two.
const CELL_SHIFT: u32 = f32::MANTISSA_DIGITS - 1 - 3;
/// Number of cells. They cover all weights that have a mass.
const CELLS: usize = 46 << 3;

/// Scratch for [`Candidates::select`].
#[derive(Debug)]
pub(crate) struct Candidates {
    counts: [u32; CELLS],
    masses: [u64; CELLS],
    pub list: Vec<Candidate>,
}

impl Candidates {
    pub fn new() -> Self {
        Self {
            counts: [0; CELLS],
            masses: [0; CELLS],
            list: Vec::new(),
        }
    }

    /// Puts the shortest run of the most likely tokens that holds `count` tokens or `mass`,
    /// whichever is reached first, into `list`. The most likely token comes first, and the
    /// lowest id first among equals. Tokens without mass are left out.
    ///
    /// A histogram over weights finds the least likely cell that is needed. Only tokens of that
    /// and better cells are collected and sorted.
    pub fn select(&mut self, weights: &[f32], scale: MassScale, count: usize, mass: u64) {
        let cut = self.needed_cells(weights, scale, count, mass);
        self.list.clear();
        for (token, weight) in (0..).zip(weights) {
            if scale.mass(*weight) > 0 && cell(*weight) < cut {
                let weight = *weight;
                self.list.push(Candidate { token, weight });
            }
        }
        if self.list.len() > count && count > 0 {
            self.list.select_nth_unstable_by(count - 1, order);
            self.list.truncate(count);
        }
        self.list.sort_unstable_by(order);
        self.truncate(scale, mass);
    }

    /// Drops the candidates after the first ones that hold `mass`.
    pub fn truncate(&mut self, scale: MassScale, mass: u64) {
        let mut sum = 0;
        let enough = self.list.iter().position(|candidate| {
            sum += scale.mass(candidate.weight);
            sum >= mass
        });
        if let Some(last) = enough {
            self.list.truncate(last + 1);
        }
    }

    /// Returns the mass of all candidates in `list`.
    pub fn total(&self, scale: MassScale) -> u64 {
        self.list.iter().map(|c| scale.mass(c.weight)).sum()
    }

    /// Returns the candidate at place `target` if candidates lie side by side. `target` is less
    /// than [`Self::total`].
    pub fn invert(&self, scale: MassScale, target: u64) -> u32 {
        let list = self.list.iter();
        first_beyond(list.map(|c| (c.token, scale.mass(c.weight))), target)
    }

    /// Returns the number of cells that hold `count` tokens or `mass`.
    fn needed_cells(
        &mut self,
        weights: &[f32],
        scale: MassScale,
        count: usize,
        mass: u64,
    ) -> usize {
        self.counts.fill(0);
        self.masses.fill(0);
        for weight in weights {
            let own = scale.mass(*weight);
            if own > 0 {
                let cell = cell(*weight);
                self.counts[cell] += 1;
                self.masses[cell] += own;
            }
        }
        let (mut tokens, mut sum) = (0, 0);
        for cell in 0..CELLS {
            tokens += self.counts[cell] as usize;
            sum += self.masses[cell];
            if tokens >= count || sum >= mass {
                return cell + 1;
            }
        }
        CELLS
    }
}

/// Returns the index of a weight's cell. Larger weights have lower cells.
fn cell(weight: f32) -> usize {
    let below = 1f32.to_bits().saturating_sub(weight.to_bits());
    ((below >> CELL_SHIFT) as usize).min(CELLS - 1)
}

/// Orders the most likely candidate first, and the lowest id first among equals.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token))
}
