//! How the tokens of a pass are chosen, for devices that choose.

use lockstep_collective::Owners;
use lockstep_types::sampling::SamplingParams;

use crate::{Axis, BackendError};

/// A device that chooses tokens, and verifies drafts by them in mode `target`, as the
/// choices of the staged batch say: see [`crate::Batch::choices`]. Requests whose tokens
/// the host chooses it leaves alone. All but [`Self::outcomes`] may be part of a pass that
/// is recorded. `T`, `I` and `C` are its tensors, inputs and caches. Where there are several
/// ranks, all call the same operations.
pub trait ChooseTokens<T, I, C> {
    /// Chooses a token from each row of `logits`, whole rows of the vocabulary: those of
    /// the tokens whose logits are wanted, from number `first` of them on. Rows that are
    /// the host's stay as they are; what is left of others is unspecified.
    fn choose(&mut self, logits: &mut T, first: usize, inputs: &mut I);
    /// Brings rows of `x` `[n, width]` of every rank of `axis` to the devices of those alone
    /// that own them, as [`crate::Backend::gather_to_host`] does to hosts: on one that owns
    /// any the first of `own` gets `[own rows, Σ widths]`, columns in rank order. The second
    /// is space of that shape; both have room for as many.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn gather(
        &mut self,
        axis: Axis,
        x: &T,
        owners: Owners<'_>,
        own: Option<(&mut T, &mut T)>,
    ) -> Result<(), BackendError>;
    /// Walks every request's drafts, once all its tokens are chosen, and moves the cells
    /// of accepted ones in `cache` to those of their positions. Of ranks that share a DP
    /// rank's requests the first has chosen: it walks, and tells the others, which move
    /// cells of their own. Where ranks' notes came with the pass and differ
    /// ([`crate::ExchangeNotes`]), every request has failed, and no cell moves.
    fn accept(&mut self, inputs: &mut I, cache: &mut C);
    /// Waits until that is done, and gives what became of the requests of the batch; of
    /// the host's it is unspecified.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn outcomes<'a>(&mut self, inputs: &'a mut I) -> Result<Chosen<'a>, BackendError>;
}

/// What became of the requests of a batch, in words; `most` is [`ChoiceLimits::most`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Chosen<'a> {
    /// For each request `2 · most`: how many tokens; the tokens, the accepted drafts and
    /// the one after them; the numbers of the accepted nodes. The rest is zero. One whose
    /// logits were not finite has one token, [`FAILED`].
    pub words: &'a [u32],
    /// For each request [`ChoiceLimits::nodes`]: the tokens that were drafted for it, as far
    /// as there are any; none of all where the batch had no [`crate::Batch::chain`].
    pub drafted: &'a [u32],
    /// For each of these the number of the node that it follows; none of all where the
    /// batch had no trees that the device drafts.
    pub parents: &'a [u32],
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
    /// Whose token it is, in [`ChoiceBatch::choices`], or [`ChoiceRow::HOST`].
    pub request: u32,
    /// Output positions behind that request's own: the depth of the node in a
    /// chain or tree of drafts.
    pub depth: u32,
}

impl ChoiceRow {
    /// A row that the host reads, whoever's token is chosen where.
    pub const HOST: Self = Self {
        request: u32::MAX,
        depth: 0,
    };
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

/// How the wanted logits of a batch become tokens. An empty one leaves all to the host.
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

impl ChoiceBatch<'_> {
    /// Whether the host chooses the tokens of a request.
    pub fn is_hosts(&self, request: usize) -> bool {
        let choice = self.choices.get(request);
        choice.is_none_or(|choice| choice.how == How::Host)
    }
    /// Whether the host reads a row of logits.
    pub fn is_hosts_row(&self, row: usize) -> bool {
        let row = self.rows.get(row);
        row.is_none_or(|row| self.is_hosts(row.request as usize))
    }
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
    /// Tokens that one request takes.
    pub most: usize,
}

impl ChoiceLimits {
    /// What `batch` takes.
    pub fn of(batch: &ChoiceBatch<'_>) -> Self {
        let tokens = batch.drafted.iter().map(|row| row.nodes as usize + 1);
        Self {
            requests: batch.choices.len(),
            rows: batch.rows.len(),
            parents: batch.parents.len(),
            most: tokens.max().unwrap_or(0),
        }
    }

    /// Drafts of a request that the device tells of at the most: those of its chain, or
    /// as many as it has parents in a tree.
    pub fn nodes(&self) -> usize {
        let in_tree = self.parents.checked_div(self.requests).unwrap_or(0);
        self.most.saturating_sub(1).max(in_tree)
    }

    /// Words in which a device tells what became of so many requests, and where `drafts`
    /// are made by devices those.
    pub fn outcome_words(&self, requests: usize, drafts: bool) -> usize {
        let each = if self.parents > 0 { 2 } else { 1 };
        let drafted = if drafts { each * self.nodes() } else { 0 };
        requests * (2 * self.most + drafted)
    }

    /// Whether there is room for what takes `batch`. Of more drafts than a request may
    /// take tokens, the rest is not looked at.
    pub fn hold(&self, batch: &Self) -> bool {
        batch.requests <= self.requests
            && batch.rows <= self.rows
            && batch.parents <= self.parents
            && (batch.requests == 0 || self.most > 0)
    }
}

/// The first rule that `batch` breaks, of those that kernels rely on, where it belongs
/// to `tokens` tokens of which `wanted` are wanted.
pub(crate) fn broken_rule(
    batch: &ChoiceBatch<'_>,
    tokens: usize,
    wanted: usize,
) -> Option<&'static str> {
    if batch.drafted.len() != batch.choices.len() {
        return Some("drafts are those of the requests");
    }
    if !batch.choices.is_empty() && batch.rows.len() != wanted {
        return Some("every wanted token is for something");
    }
    for drafted in batch.drafted {
        let nodes = drafted.nodes as usize;
        if drafted.logits as usize + nodes >= wanted || drafted.token as usize + nodes >= tokens {
            return Some("every node has a token and logits");
        }
        let Some(first) = drafted.parents else {
            continue;
        };
        let own = batch.parents.get(first as usize..).unwrap_or_default();
        if own.len() < nodes {
            return Some("every node of a tree has a parent");
        }
        let mut numbered = (1..).zip(&own[..nodes]);
        if !numbered.all(|(number, parent)| *parent < number) {
            return Some("parents come before children");
        }
    }
    None
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
        let rows = [ChoiceRow::HOST, row, row, row];
        let tree = DraftedRow {
            logits: 1,
            token: 2,
            nodes: 2,
            parents: Some(0),
        };
        let batch = ChoiceBatch {
            choices: &choices,
            rows: &rows,
            drafted: &[tree],
            parents: &[0, 1],
        };
        assert_eq!(broken_rule(&batch, 5, 4), None);
        assert_eq!(broken_rule(&ChoiceBatch::default(), 5, 4), None);
        assert!(batch.is_hosts_row(0) && !batch.is_hosts_row(1) && batch.is_hosts(1));
        let limits = ChoiceLimits::of(&batch);
        assert_eq!(limits.most, 3);
        assert!(limits.hold(&limits) && !ChoiceLimits::default().hold(&limits));
        // Too few tokens, or logits.
        assert!(broken_rule(&batch, 4, 4).is_some() && broken_rule(&batch, 5, 3).is_some());
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
                ..batch
            },
        ];
        for batch in wrong {
            assert!(broken_rule(&batch, 5, 4).is_some(), "{batch:?}");
        }
    }
}
