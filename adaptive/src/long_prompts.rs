//! Prompts that take several steps, and the DP ranks that run them.

use crate::Row;

/// Steps without a long prompt after which a DP rank counts as having none. When one long
/// prompt ends, the next often begins soon.
const LATELY: u32 = 5;

/// Sums over all ranks about long prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LongPrompts {
    /// Ranks that run long prompts, in every step or nearly so.
    pub ranks: u32,
    /// Requests of these ranks: rows that decode, and prompts.
    pub rows: u32,
    /// Rows that decode on the other ranks, which wait for these prompts.
    pub waiting: u32,
    /// Number of these ranks that ran a part of such a prompt in the last step.
    pub chunks: u32,
    /// Tokens that these ranks put out in the last step.
    pub tokens: u32,
}

/// Follows every rank's prompts from the rows that the rank brings.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongPromptRanks(Vec<Rank>);

#[derive(Debug, Clone, Copy)]
struct Rank {
    /// True if a prompt goes on after the newest step.
    goes_on: bool,
    /// True if that step runs a part of a prompt of several steps.
    chunk: bool,
    /// Prompts that end with that step.
    joined: u32,
    /// Steps since the last such part.
    since: u32,
}

impl Rank {
    const NEW: Self = Self {
        goes_on: false,
        chunk: false,
        joined: 0,
        since: LATELY,
    };

    /// Begins a step to which the rank brings `row`.
    fn begin(&mut self, row: &Row) {
        self.chunk = self.goes_on || row.unfinished > 0;
        self.goes_on = row.unfinished > 0;
        self.joined = row.joined;
        self.since = match self.chunk {
            true => 0,
            false => self.since.saturating_add(1),
        };
    }

    fn has_long_prompts(&self) -> bool {
        self.since < LATELY
    }
}

impl LongPromptRanks {
    /// Begins a step with these rows. Returns zeros if no rank waits: no rank runs long
    /// prompts, or only one rank has requests.
    pub fn begin(&mut self, rows: &[Row]) -> LongPrompts {
        let mut all = LongPrompts::default();
        if rows.len() < 2 {
            return all;
        }
        self.0.resize(rows.len(), Rank::NEW);
        for (rank, row) in self.0.iter_mut().zip(rows) {
            if rank.has_long_prompts() {
                all.chunks += u32::from(rank.chunk);
                let out = row.seen.taken().saturating_add(rank.joined);
                all.tokens = all.tokens.saturating_add(out);
            }
            rank.begin(row);
            if rank.has_long_prompts() {
                all.ranks += 1;
                let rows = row.decodes.saturating_add(row.unfinished);
                all.rows = all.rows.saturating_add(rows);
            } else {
                all.waiting = all.waiting.saturating_add(row.decodes);
            }
        }
        let groups = all.ranks.saturating_add(u32::from(all.waiting > 0));
        if all.ranks == 0 || groups < 2 {
            return LongPrompts::default();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seen;

    fn row(decodes: u32, joined: u32, unfinished: u32) -> Row {
        Row {
            decodes,
            joined,
            unfinished,
            ..Row::default()
        }
    }

    fn shown(row: Row, decodes: u32) -> Row {
        let seen = Seen {
            decodes,
            ..Seen::default()
        };
        Row { seen, ..row }
    }

    #[test]
    fn a_rank_has_long_prompts_from_the_first_that_goes_on_until_none_came_for_long() {
        let mut ranks = LongPromptRanks::default();
        let free = row(4, 1, 0);
        let none = LongPrompts::default();
        assert_eq!(ranks.begin(&[free, free]), none, "prompts of one step");
        let long = |chunks, tokens, rows| LongPrompts {
            ranks: 1,
            rows,
            waiting: 4,
            chunks,
            tokens,
        };
        // The tokens of the step with the first part do not count yet: the rank was not known
        // to have long prompts.
        assert_eq!(ranks.begin(&[row(1, 0, 2), free]), long(0, 0, 3));
        let next = shown(row(2, 1, 1), 1);
        assert_eq!(ranks.begin(&[next, shown(free, 4)]), long(1, 1, 3));
        // The last part of a prompt that went on, and the first token of the prompt before it.
        let next = shown(row(3, 1, 0), 2);
        assert_eq!(ranks.begin(&[next, shown(free, 4)]), long(1, 3, 3));
        let next = shown(row(3, 0, 0), 3);
        assert_eq!(ranks.begin(&[next, shown(free, 4)]), long(1, 4, 3));
        for step in 1..LATELY - 1 {
            assert_eq!(ranks.begin(&[next, free]), long(0, 3, 3), "{step}");
        }
        assert_eq!(ranks.begin(&[next, free]).ranks, 0);
    }

    #[test]
    fn a_rank_alone_waits_for_nobody() {
        let mut ranks = LongPromptRanks::default();
        for _ in 0..3 {
            assert_eq!(ranks.begin(&[row(4, 0, 2)]), LongPrompts::default());
        }
        // A rank beside others that have nothing to do waits for no rank either.
        let mut ranks = LongPromptRanks::default();
        for _ in 0..3 {
            let idle = row(0, 0, 0);
            assert_eq!(ranks.begin(&[row(4, 0, 2), idle]), LongPrompts::default());
        }
        let both = ranks.begin(&[row(4, 0, 2), row(1, 0, 0)]);
        assert_eq!((both.ranks, both.rows, both.waiting), (1, 6, 1));
        let both = ranks.begin(&[row(4, 0, 2), row(1, 0, 1)]);
        assert_eq!((both.ranks, both.rows, both.waiting), (2, 8, 0));
    }
}
