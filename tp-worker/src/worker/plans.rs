//! Prepared plans: what graphs are on a GPU, for every backend.

use std::{collections::BTreeMap, fmt};

use lockstep_model::{CollectiveKind, Schedule};

use super::{PlanError, WorkerLimits, digest::Digest};

/// The shape of a batch; plans are keyed by its bucket, nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Geometry {
    /// Rows.
    pub requests: usize,
    /// New tokens of all rows.
    pub tokens: usize,
    /// New tokens of the longest row.
    pub max_q_len: usize,
}

/// What is known of a pass before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedPlan {
    /// The largest batch it serves.
    pub geometry: Geometry,
    /// Digest of the geometry and of the collectives a pass will issue, in
    /// order. Ranks compare it before serving, and it enters the rolling
    /// digest of every step that runs the plan.
    pub digest: u64,
}

/// All plans, prepared before serving. Their buffers are one pool of the
/// largest geometry's size (activations in the model, the batch in the
/// worker); a batch whose bucket is here never allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRegistry {
    limits: Geometry,
    plans: BTreeMap<Geometry, PreparedPlan>,
}

impl PlanRegistry {
    /// Prepares every bucket within `limits` for a model with `schedule`.
    pub fn prepare(limits: &WorkerLimits, schedule: &Schedule) -> Self {
        let limits = Geometry {
            requests: limits.requests,
            tokens: limits.tokens,
            max_q_len: limits.tokens.min(limits.positions),
        };
        let mut plans = BTreeMap::new();
        for requests in buckets(limits.requests) {
            for max_q_len in buckets(limits.max_q_len) {
                for tokens in buckets(limits.tokens) {
                    let geometry = Geometry {
                        requests,
                        tokens,
                        max_q_len,
                    };
                    if geometry.occurs() {
                        plans.insert(geometry, prepared(geometry, schedule));
                    }
                }
            }
        }
        Self { limits, plans }
    }

    /// The plan that a batch runs under; the empty batch has the smallest.
    ///
    /// # Errors
    /// [`PlanError::Geometry`] when the batch exceeds the limits.
    pub fn find(&self, batch: Geometry) -> Result<&PreparedPlan, PlanError> {
        let key = Geometry {
            requests: bucket(batch.requests, self.limits.requests),
            tokens: bucket(batch.tokens, self.limits.tokens),
            max_q_len: bucket(batch.max_q_len, self.limits.max_q_len),
        };
        let fits = |plan: &&PreparedPlan| {
            batch.requests <= plan.geometry.requests
                && batch.tokens <= plan.geometry.tokens
                && batch.max_q_len <= plan.geometry.max_q_len
        };
        let plan = self.plans.get(&key).filter(fits);
        plan.ok_or(PlanError::Geometry(batch))
    }

    /// Digest of all plans.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        for plan in self.plans.values() {
            digest.word(plan.digest);
        }
        digest.value()
    }

    /// How many are prepared.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

impl Geometry {
    /// Whether some batch falls into this bucket: every row has a token and at
    /// most `max_q_len`, one row has more than half of that.
    fn occurs(self) -> bool {
        let rows_at_least = self.requests / 2 + 1;
        let longest_at_least = self.max_q_len / 2 + 1;
        self.tokens >= rows_at_least - 1 + longest_at_least
            && self.tokens / 2 < self.requests * self.max_q_len
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests,
            tokens,
            max_q_len,
        } = self;
        write!(
            f,
            "{requests} rows of {tokens} tokens, {max_q_len} in the longest"
        )
    }
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

fn prepared(geometry: Geometry, schedule: &Schedule) -> PreparedPlan {
    let mut digest = Digest::new();
    for word in [geometry.requests, geometry.tokens, geometry.max_q_len] {
        digest.word(word as u64);
    }
    digest.word(schedule.block_rows as u64);
    for part in [&schedule.tokens, &schedule.logit_tokens, &schedule.block] {
        digest.word(part.len() as u64);
        for step in part {
            let kind = match step.kind {
                CollectiveKind::AllReduce => 1,
                CollectiveKind::Gather => 2,
            };
            digest.word(kind << 56 | step.width as u64);
        }
    }
    PreparedPlan {
        geometry,
        digest: digest.value(),
    }
}

#[cfg(test)]
mod tests;
