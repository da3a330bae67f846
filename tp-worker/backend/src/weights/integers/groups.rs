//! Inputs that share a scale.

use std::ops::Range;
use std::sync::Arc;

/// Groups of the inputs of a matrix, or of a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputGroups {
    /// All inputs are one group.
    Whole,
    /// Consecutive inputs.
    Runs {
        /// Inputs of a group.
        size: usize,
        /// Inputs of the first group that are not used.
        skipped: usize,
    },
    /// Inputs that may lie apart, with the number of each one's group (act-order).
    Scattered(Arc<[u32]>),
}

impl InputGroups {
    /// Returns the groups of the inputs `inputs` of a whole matrix, and the groups of the matrix
    /// of which scales and zero points are needed. Numbers of groups count from the first of
    /// these.
    pub fn part(&self, inputs: &Range<usize>) -> (Self, Range<usize>) {
        match self {
            Self::Whole => (Self::Whole, 0..1),
            Self::Runs { size, skipped } => {
                let (from, to) = (skipped + inputs.start, skipped + inputs.end);
                let groups = Self::Runs {
                    size: *size,
                    skipped: from % size,
                };
                (groups, from / size..to.div_ceil(*size))
            }
            Self::Scattered(numbers) => {
                let own = &numbers[inputs.clone()];
                let first = own.iter().min().copied().unwrap_or(0);
                let end = own.iter().max().map_or(first, |last| last + 1);
                let groups = own.iter().map(|number| number - first).collect();
                (Self::Scattered(groups), first as usize..end as usize)
            }
        }
    }

    /// Returns the number of the group of input `input`, and how many inputs from it on are in
    /// that group, at least 1.
    pub(super) fn run(&self, input: usize) -> (usize, usize) {
        match self {
            Self::Whole => (0, usize::MAX),
            Self::Runs { size, skipped } => {
                let place = skipped + input;
                (place / size, size - place % size)
            }
            Self::Scattered(numbers) => {
                let own = &numbers[input..];
                let group = own[0];
                let run = own.iter().take_while(|number| **number == group).count();
                (group as usize, run)
            }
        }
    }
}
