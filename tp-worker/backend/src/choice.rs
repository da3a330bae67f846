//! How the tokens of a pass are chosen, for devices that choose.

use lockstep_types::sampling::SamplingParams;

use crate::BackendError;

/// A device that chooses tokens, from logits in its tensors `T`.
pub trait ChooseTokens<T> {
    /// Waits for the device, which chooses a token from each row of `logits`, whole rows
    /// of the vocabulary, as `choices` say. Rows that are the host's stay as they are; what
    /// is left of others is unspecified. `tokens` gets one for each row, anything for the
    /// host's, and none at all where all are the host's.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn choose(
        &mut self,
        logits: &mut T,
        choices: &[Choice],
        tokens: &mut Vec<u32>,
    ) -> Result<(), BackendError>;
}

/// In place of a token where logits were not finite.
pub const FAILED: u32 = u32::MAX;

/// How one request's tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// By which rule.
    pub how: How,
    /// Key of the generator.
    pub seed: u64,
    /// Output tokens so far: the counter of the generator.
    pub position: u64,
}

/// By which rule a token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum How {
    /// On the host, which does all that needs a request's history or more than a
    /// token of its logits.
    Host,
    /// The most likely one, the lowest id among equals.
    Greedy,
    /// Drawn, with the fields of [`SamplingParams`] in their ranges.
    Sample {
        /// More than 0.
        temperature: f32,
        /// 0 means all.
        top_k: u32,
        /// In (0, 1].
        top_p: f32,
        /// In [0, 1].
        min_p: f32,
    },
}

impl Choice {
    /// Of a request with `params` and `position` output tokens so far, of which
    /// nothing is reported but tokens.
    pub fn of(params: &SamplingParams, position: u64) -> Self {
        let masks =
            position < u64::from(params.min_new_tokens) && !params.stop_token_ids.is_empty();
        let adjusted = !params.logit_bias.is_empty() || params.has_penalties() || masks;
        let how = match params.temperature {
            _ if adjusted => How::Host,
            0.0 => How::Greedy,
            temperature => How::Sample {
                temperature,
                top_k: params.top_k,
                top_p: params.top_p,
                min_p: params.min_p,
            },
        };
        Self {
            how,
            seed: params.seed,
            position,
        }
    }
}

/// What a row of logits is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceRow {
    /// Whose token it is, in [`ChoiceBatch::choices`].
    pub request: u32,
    /// Output positions behind that request's own: the depth of the node in a
    /// chain or tree of drafts.
    pub depth: u32,
}

/// What was drafted for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftedRow {
    /// The row of logits of its last known token, node 0, which those of its drafted
    /// nodes follow.
    pub logits: u32,
    /// The token of the batch that node 0 is, which its drafted nodes follow.
    pub token: u32,
    /// How many were drafted.
    pub nodes: u32,
    /// Where their parents begin in [`ChoiceBatch::parents`]; `None`: each follows
    /// the one before.
    pub parents: Option<u32>,
}

/// How the wanted logits of a batch become tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChoiceBatch<'a> {
    /// The requests that take tokens.
    pub choices: &'a [Choice],
    /// For each row of wanted logits what it is for.
    pub rows: &'a [ChoiceRow],
    /// For each request what was drafted for it.
    pub drafted: &'a [DraftedRow],
    /// For each drafted node of a tree the number of the node that it follows,
    /// which is less than its own.
    pub parents: &'a [u32],
}

/// The largest [`ChoiceBatch`] of some.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChoiceLimits {
    /// Requests that take tokens.
    pub requests: usize,
    /// Rows of wanted logits.
    pub rows: usize,
    /// Entries of [`ChoiceBatch::parents`].
    pub parents: usize,
}

impl ChoiceLimits {
    /// # Panics
    /// If `batch` has more of something, lacks what was drafted for a request, or
    /// names what it does not have.
    pub fn expect(&self, batch: &ChoiceBatch<'_>) {
        let (requests, parents) = (batch.choices.len(), batch.parents.len());
        let fits =
            requests <= self.requests && batch.rows.len() <= self.rows && parents <= self.parents;
        assert!(fits, "no more is chosen than {self:?} says");
        assert!(
            batch.drafted.len() == requests,
            "drafts are those of the requests"
        );
        let known = |row: &ChoiceRow| (row.request as usize) < requests;
        assert!(
            batch.rows.iter().all(known),
            "rows are of requests that are there"
        );
        for drafted in batch.drafted {
            let nodes = drafted.nodes as usize;
            let last = drafted.logits as usize + nodes;
            assert!(last < batch.rows.len(), "every node has logits");
            let Some(first) = drafted.parents else {
                continue;
            };
            let own = batch.parents.get(first as usize..).unwrap_or_default();
            assert!(own.len() >= nodes, "every node of a tree has a parent");
            let mut numbered = (1..).zip(&own[..nodes]);
            assert!(
                numbered.all(|(number, parent)| *parent < number),
                "parents come before children"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(params: &SamplingParams, position: u64) -> How {
        Choice::of(params, position).how
    }

    #[test]
    fn what_needs_more_than_logits_is_the_hosts() {
        let plain = SamplingParams::default();
        assert!(matches!(how(&plain, 0), How::Sample { .. }));
        assert_eq!(how(&SamplingParams::greedy(), 0), How::Greedy);
        for params in [
            SamplingParams {
                logit_bias: vec![(1, 1.0)],
                ..plain.clone()
            },
            SamplingParams {
                repetition_penalty: 1.1,
                ..SamplingParams::greedy()
            },
            SamplingParams {
                presence_penalty: 0.1,
                ..plain.clone()
            },
        ] {
            assert_eq!(how(&params, 0), How::Host);
        }
        let least = SamplingParams {
            min_new_tokens: 3,
            stop_token_ids: vec![2],
            ..SamplingParams::greedy()
        };
        assert_eq!(how(&least, 2), How::Host);
        assert_eq!(how(&least, 3), How::Greedy);
    }

    #[test]
    fn a_batch_names_nothing_that_it_lacks() {
        let choices = [Choice::of(&SamplingParams::greedy(), 0)];
        let row = ChoiceRow {
            request: 0,
            depth: 0,
        };
        let rows = [row; 3];
        let tree = DraftedRow {
            logits: 0,
            token: 0,
            nodes: 2,
            parents: Some(0),
        };
        let limits = ChoiceLimits {
            requests: 1,
            rows: 3,
            parents: 2,
        };
        let batch = ChoiceBatch {
            choices: &choices,
            rows: &rows,
            drafted: &[tree],
            parents: &[0, 1],
        };
        limits.expect(&batch);
        let wrong = [
            ChoiceBatch {
                parents: &[0, 2],
                ..batch
            },
            ChoiceBatch {
                parents: &[0],
                ..batch
            },
            ChoiceBatch {
                rows: &rows[..2],
                ..batch
            },
            ChoiceBatch {
                drafted: &[],
                ..batch
            },
            ChoiceBatch {
                choices: &[],
                drafted: &[],
                ..batch
            },
        ];
        for batch in wrong {
            assert!(
                std::panic::catch_unwind(|| limits.expect(&batch)).is_err(),
                "{batch:?}"
            );
        }
    }
}
