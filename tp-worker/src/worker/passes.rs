//! Passes prepared before serving, by size: what is a captured graph on a GPU.
//! There is one for each bucket of sizes, which serves any number of wanted rows.

use std::collections::BTreeMap;

use lockstep_adaptive::{Digest, Tier};
use lockstep_backend::{Axis, PassKey};
use lockstep_model::{CollectiveKind, CountedRows, Schedule};
use lockstep_types::StepLimits;

use super::{PlanError, WorkerError};

/// What is known of a pass before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedPass {
    /// The largest batch it serves.
    pub key: PassKey,
    /// Digest of the key and of the collectives a pass will issue, in
    /// order. Ranks compare it before serving, and it enters the rolling
    /// digest of every step that runs it.
    pub digest: u64,
}

/// All passes, prepared before serving. Their buffers are one pool of the
/// largest one's size (activations in the model, the batch in the
/// worker); a batch whose bucket is here never allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassRegistry {
    limits: PassKey,
    passes: BTreeMap<PassKey, PreparedPass>,
    /// Digest of what passes that the device has recorded exchange.
    recorded: u64,
}

impl PassRegistry {
    /// Prepares every bucket within `limits`, which are those of each of `dp_ranks`, for
    /// a model with `schedule`.
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

    /// The device has recorded passes that exchange what has the digest `exchanged`,
    /// which enters those of all passes.
    pub fn recorded(&mut self, exchanged: u64) {
        self.recorded = exchanged;
    }

    /// The pass that a batch runs as; the empty batch has the smallest.
    ///
    /// # Errors
    /// [`PlanError::NoPass`] when the batch exceeds the limits.
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

    /// Digest of all passes, and of those that steps of each of `tiers` run as.
    ///
    /// # Errors
    /// [`WorkerError::TierTooLarge`] when some size left a tier out.
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

    /// How many are prepared.
    pub fn len(&self) -> usize {
        self.passes.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.passes.is_empty()
    }
}

/// Whether the batches of a step fall into this bucket: every row has a token and at
/// most `max_q_len`, one row has more than half of that. Most rows and the longest one
/// need not be in the same batch where there are several `dp_ranks`: their pass is
/// that of the most of each.
fn occurs(key: PassKey, dp_ranks: usize) -> bool {
    let rows_at_least = key.requests / 2 + 1;
    let longest_at_least = key.max_q_len / 2 + 1;
    let tokens_at_least = match dp_ranks {
        1 => rows_at_least - 1 + longest_at_least,
        _ => rows_at_least.max(longest_at_least),
    };
    key.tokens >= tokens_at_least && key.tokens / 2 < key.requests * key.max_q_len
}

/// The bucket of `value`: the next power of two, at most `limit`.
fn bucket(value: usize, limit: usize) -> usize {
    value.max(1).next_power_of_two().min(limit)
}

/// All buckets up to `limit`.
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
