//! Crossing: rows of all DP ranks come together, and apart again.

use std::ops::Range;

use lockstep_backend::WorldRows;

use crate::{ModelError, Topology};

/// Rows of a batch that each rank brings to all ranks, and the rows that it takes back. The
/// ranks of a DP rank have the same rows. Each of them brings a share, so that no row travels
/// twice, and each takes all. Example: of 5 rows, the two ranks of a DP rank bring 2 and 3.
#[derive(Debug)]
pub(crate) struct Crossing {
    topology: Topology,
    /// Number of rows that each rank brings, in the order of all rows.
    pub counts: Vec<usize>,
    /// Index of the first row that this rank brings, among its DP rank's rows.
    pub first: usize,
    /// Rows that each rank takes: all rows of its DP rank.
    pub rows: Vec<Range<usize>>,
}

impl Crossing {
    /// Creates a crossing of no rows.
    pub fn new(topology: Topology) -> Self {
        let ranks = topology.world.size;
        Self {
            topology,
            counts: vec![0; ranks],
            first: 0,
            rows: vec![0..0; ranks],
        }
    }

    /// Sets the number of rows of each DP rank.
    pub fn set(&mut self, by_dp_rank: &[usize]) {
        self.set_each(by_dp_rank.iter().copied());
    }

    /// Gives every DP rank `rows` rows.
    pub fn set_even(&mut self, rows: usize) {
        self.set_each(std::iter::repeat_n(rows, self.topology.dp_size()));
    }

    fn set_each(&mut self, by_dp_rank: impl Iterator<Item = usize>) {
        let (size, own) = (self.topology.attention.size, self.topology.attention.rank);
        let share = |rows: usize, member: usize| rows * member / size;
        let mut start = 0;
        for (dp_rank, rows) in by_dp_rank.enumerate() {
            for member in 0..size {
                let rank = dp_rank * size + member;
                self.counts[rank] = share(rows, member + 1) - share(rows, member);
                self.rows[rank] = start..start + rows;
            }
            start += rows;
        }
        let mine = self.rows[self.topology.world.rank].len();
        self.first = share(mine, own);
    }

    /// Rows of this rank's DP rank, among those of all.
    pub fn own(&self) -> Range<usize> {
        self.rows[self.topology.world.rank].clone()
    }

    /// Number of rows of all DP ranks.
    pub fn all(&self) -> usize {
        self.rows.last().map_or(0, |rows| rows.end)
    }
}

/// The crossings of a pass, with several DP ranks.
#[derive(Debug)]
pub(crate) struct Crossings {
    /// Crossing of all tokens.
    pub tokens: Crossing,
    /// Crossing of the tokens whose logits are wanted.
    pub wanted: Crossing,
}

impl Crossings {
    /// Creates the crossings of passes over no tokens.
    pub fn new(topology: Topology) -> Self {
        Self {
            tokens: Crossing::new(topology),
            wanted: Crossing::new(topology),
        }
    }

    /// Sets the rows that all DP ranks bring. This DP rank has `own` tokens and wanted logits,
    /// and none may bring more than `limit` tokens.
    ///
    /// # Errors
    /// [`ModelError::World`].
    pub fn set(
        &mut self,
        rows: &WorldRows,
        own: (usize, usize),
        limit: usize,
    ) -> Result<(), ModelError> {
        let topology = &self.tokens.topology;
        let (dp_size, dp_rank) = (topology.dp_size(), topology.dp_rank());
        let WorldRows { tokens, wanted } = rows;
        let fits = tokens.len() == dp_size
            && wanted.len() == dp_size
            && (tokens[dp_rank], wanted[dp_rank]) == own
            && tokens
                .iter()
                .zip(wanted)
                .all(|(t, w)| w <= t && *t <= limit);
        if !fits {
            return Err(ModelError::World {
                found: rows.clone(),
                dp_rank,
                dp_size,
                tokens: own.0,
                wanted: own.1,
                limit,
            });
        }
        self.tokens.set(tokens);
        self.wanted.set(wanted);
        Ok(())
    }

    /// Gives every DP rank `rows` rows, all of which are wanted.
    pub fn set_even(&mut self, rows: usize) {
        self.tokens.set_even(rows);
        self.wanted.set_even(rows);
    }
}

#[cfg(test)]
mod tests;
