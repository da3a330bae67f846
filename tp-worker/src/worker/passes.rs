//! Passes prepared before serving, by size; on a GPU a pass is a captured graph. There is one
//! pass for each bucket of sizes. It serves any number of wanted rows.

use std::collections::BTreeMap;

use lockstep_adaptive::{Digest, Tier};
use lockstep_backend::{Axis, PassKey};
use lockstep_model::{CollectiveKind, CountedRows, Schedule};
use lockstep_types::StepLimits;

use super::{PlanError, WorkerError};

/// Description of a pass before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedPass {
    /// The largest batch that the pass serves.
    pub key: PassKey,
    /// Digest of the key and of the collectives that the pass will issue, in order. Ranks
    /// compare it before serving, and it enters the rolling digest of every step that runs the
    /// pass.
    pub digest: u64,
}

/// All passes, prepared before serving. They share one pool of buffers of the largest pass's
/// size: activations in the model, the batch in the worker. A batch whose bucket is here never
/// allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassRegistry {
    limits: PassKey,
    passes: BTreeMap<PassKey, PreparedPass>,
    /// Digest of the exchanges of the passes that the device has recorded.
    recorded: u64,
}

impl PassRegistry {
    /// Prepares every bucket within `limits` for a model with `schedule`. The limits are those
    /// of one DP rank; there are `dp_ranks`.
    pub fn prepare(limits: &StepLimits, schedule: &Schedule, dp_ranks: usize) -> Self {
        let limits = PassKey {
            requests: limits.requests,
            tokens: limits.tokens,
            max_q_len: limits.tokens.min(limits.positions),
        };
        let mut passes = BTreeMap::new();
        for requests in buckets(limits.requests) {
            for max_q_len in buckets(limits.max_q_len) {
                for tokens in buckets(limits.tokens) {
                    let key = PassKey {
                        requests,
                        tokens,
                        max_q_len,
                    };
                    if occurs(key, dp_ranks) {
                        passes.insert(key, prepare(key, schedule));
                    }
                }
            }
        }
        Self {
            limits,
            passes,
            recorded: 0,
        }
    }

    /// Takes the digest `exchanged` of the exchanges of recorded passes. It enters the digests
    /// of all passes.
    pub fn recorded(&mut self, exchanged: u64) {
        self.recorded = exchanged;
    }

    /// Returns the pass that a batch runs as. The empty batch runs as the smallest pass.
    ///
    /// # Errors
    /// [`PlanError::NoPass`] if the batch exceeds the limits.
    pub fn find(&self, batch: PassKey) -> Result<PreparedPass, PlanError> {
        let bucketed = PassKey {
            requests: bucket(batch.requests, self.limits.requests),
            tokens: bucket(batch.tokens, self.limits.tokens),
            max_q_len: bucket(batch.max_q_len, self.limits.max_q_len),
        };
        let pass = self.passes.get(&bucketed);
        let pass = pass.filter(|pass| pass.key.holds(&batch));
        let pass = pass.ok_or(PlanError::NoPass(batch))?;
        Ok(PreparedPass {
            digest: pass.digest ^ self.recorded,
            ..*pass
        })
    }

    /// Returns the digest of all passes, and of the passes that steps of each of `tiers` run
    /// as.
    ///
    /// # Errors
    /// [`WorkerError::TierTooLarge`] if the passes have no room for a tier.
    pub fn digest(&self, tiers: &[Tier]) -> Result<u64, WorkerError> {
        let mut digest = Digest::new();
        for pass in self.passes.values() {
            digest.word(pass.digest);
        }
        for tier in tiers {
            let tokens = tier.tokens.max(1) as usize;
            digest.word(u64::from(tier.depth));
            for requests in 1..=self.limits.requests {
                let key = PassKey {
                    requests,
                    tokens: requests * tokens,
                    max_q_len: tokens,
                };
                let pass = self.find(key);
                let too_large = |_| WorkerError::TierTooLarge {
                    depth: tier.depth,
                    key,
                };
                digest.word(pass.map_err(too_large)?.digest);
            }
        }
        Ok(digest.value())
    }

    /// Returns the number of prepared passes.
    pub fn len(&self) -> usize {
        self.passes.len()
    }

    /// Returns true if no pass is prepared.
    pub fn is_empty(&self) -> bool {
        self.passes.is_empty()
    }
}

/// Returns true if batches of a step may fall into this bucket. Every row has at least one
/// token and at most `max_q_len`, and one row has more than half of `max_q_len`. With several
/// `dp_ranks` the batch with most rows and the batch with the longest row may be on different
/// DP ranks, because their pass is sized by the largest of each number. Example: with one DP
/// rank, 8 rows (5 or more) and a longest row of 8 (5 or more) need a bucket of at least 9
/// tokens; with two DP ranks, of at least 5.
fn occurs(key: PassKey, dp_ranks: usize) -> bool {
    let rows_at_least = key.requests / 2 + 1;
    let longest_at_least = key.max_q_len / 2 + 1;
    let tokens_at_least = match dp_ranks {
        1 => rows_at_least - 1 + longest_at_least,
        _ => rows_at_least.max(longest_at_least),
    };
    key.tokens >= tokens_at_least && key.tokens / 2 < key.requests * key.max_q_len
}

/// Returns the bucket of `value`: the next power of two, at most `limit`.
fn bucket(value: usize, limit: usize) -> usize {
    value.max(1).next_power_of_two().min(limit)
}

/// Returns all buckets up to `limit`.
fn buckets(limit: usize) -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(1usize), |power| power.checked_mul(2));
    powers
        .take_while(move |power| *power < limit)
        .chain(std::iter::once(limit))
}

fn prepare(key: PassKey, schedule: &Schedule) -> PreparedPass {
    let mut digest = Digest::new();
    for word in [key.requests, key.tokens, key.max_q_len] {
        digest.word(word as u64);
    }
    digest.word(schedule.block_rows as u64);
    for part in [&schedule.tokens, &schedule.logit_tokens, &schedule.block] {
        digest.word(part.len() as u64);
        for step in part {
            let kind = match step.kind {
                CollectiveKind::AllReduce => 1,
                CollectiveKind::Gather => 2,
                CollectiveKind::AllGather => 3,
                CollectiveKind::ReduceScatter => 4,
            };
            let axis = match step.axis {
                Axis::World => 1,
                Axis::Attention => 2,
                Axis::Alone => 3,
            };
            let rows = match step.rows {
                CountedRows::DpRank => 1,
                CountedRows::World => 2,
            };
            digest.word(kind << 56 | axis << 52 | rows << 48 | step.width as u64);
        }
    }
    PreparedPass {
        key,
        digest: digest.value(),
    }
}

#[cfg(test)]
mod tests;
