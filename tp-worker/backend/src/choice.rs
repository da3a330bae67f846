//! The choice of a pass's tokens, for devices that choose.

use lockstep_collective::Owners;
use lockstep_types::sampling::SamplingParams;

use crate::{Axis, BackendError, Masks};

/// A device that chooses tokens, and verifies drafts by them in mode `target`, as the choices
/// of the staged batch say: see [`crate::Batch::choices`]. The device leaves requests alone
/// whose tokens the host chooses. All but [`Self::outcomes`] may be part of a recorded pass.
/// `T`, `I` and `C` are its tensors, inputs and caches. Several ranks all call the same
/// operations.
pub trait DeviceSampler<T, I, C> {
    /// Makes room for the masks of `rows` rows of a vocabulary of `vocab` tokens, for
    /// [`Self::mask`]. Passes that were recorded before stay as they are.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] of devices that take no masks.
    fn prepare_masks(&mut self, rows: usize, vocab: usize) -> Result<(), BackendError> {
        let _ = (rows, vocab);
        let why = "this device takes no masks; let hosts choose the tokens of constrained requests";
        Err(BackendError::Unsupported(why.to_owned()))
    }
    /// Sets the logits of tokens that `masks` forbid to -∞, in the rows of `logits` that have a
    /// mask: one copy, no wait. Logits that are NaN or ∞ stay. The first row of `logits` belongs
    /// to wanted token number `first`. Is no part of a recorded pass, since the host makes masks
    /// while the pass runs.
    ///
    /// # Panics
    /// Panics if there is no room for the masks: see [`Self::prepare_masks`].
    fn mask(&mut self, logits: &mut T, first: usize, masks: Masks<'_>) {
        let _ = (logits, first);
        assert!(
            masks.rows.is_empty(),
            "masks come where there is room for them"
        );
    }
    /// Chooses a token from each row of `logits`, which are whole rows of the vocabulary. The
    /// first row belongs to wanted token number `first`. Rows for the host stay as they are;
    /// the content of the other rows afterwards is unspecified.
    fn choose(&mut self, logits: &mut T, first: usize, inputs: &mut I);
    /// Brings rows of `x` `[n, width]` of every rank of `axis` to the devices of their owners,
    /// as [`crate::Exchange::gather_to_host`] does to hosts. On an owner the first tensor of
    /// `own` gets `[own rows, Σ widths]`, columns in rank order. The second tensor is space;
    /// both have room for that shape.
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
    /// Walks every request's drafts, once all tokens are chosen, and moves the cells of
    /// accepted drafts in all of `caches` to the cells of their positions. In a DP rank of several
    /// ranks the first rank has chosen. It walks and tells the others the outcome, and they move
    /// their own cells. If notes of ranks came with the pass and differ
    /// ([`crate::ExchangeNotes`]), every request has failed, and no cell moves.
    fn accept(&mut self, inputs: &mut I, caches: &mut [C]);
    /// Waits for [`Self::accept`] and returns the outcomes of the batch's requests. They are
    /// unspecified for requests whose tokens the host chooses.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn outcomes<'a>(&mut self, inputs: &'a mut I) -> Result<Chosen<'a>, BackendError>;
}

/// Outcomes of the requests of a batch, in words. `most` is [`ChoiceLimits::most`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Chosen<'a> {
    /// For each request `2 · most` words: the number of tokens; the tokens, which are the
    /// accepted drafts and the token after them; the numbers of the accepted nodes; zeros. A
    /// request whose logits were not finite has one token, [`FAILED`]. Example with `most` 3:
    /// accepted nodes 1 and 3, drafted as tokens 7 and 9, then token 4, are `3, 7, 9, 4, 1, 3`.
    pub words: &'a [u32],
    /// For each request [`ChoiceLimits::nodes`] words: the tokens that were drafted for it, as
    /// far as there are any. Empty if the batch had no [`crate::Batch::chain`].
    pub drafted: &'a [u32],
    /// For each of `drafted`, the number of its parent. Empty if the batch had no trees that
    /// the device drafts.
    pub parents: &'a [u32],
}

/// Stands for a token if logits were not finite.
pub const FAILED: u32 = u32::MAX;

/// The choice of one request's tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The rule.
    pub how: ChoiceMethod,
    /// Key of the generator.
    pub seed: u64,
    /// Number of output tokens so far: the counter of the generator.
    pub position: u64,
}

/// The rule by which a token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChoiceMethod {
    /// The host chooses. It handles all that needs a request's history, or more of its logits
    /// than a token.
    Host,
    /// The most likely token, the lowest id among equals.
    Greedy,
    /// A token drawn with these fields of [`SamplingParams`], in their ranges.
    Sample {
        /// Greater than 0.
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
    /// Returns the choice for a request with `params` and `position` output tokens so far, of
    /// which only tokens are reported.
    pub fn of(params: &SamplingParams, position: u64) -> Self {
        let how = match params.temperature {
            _ if params.adjusts_logits(position) => ChoiceMethod::Host,
            0.0 => ChoiceMethod::Greedy,
            temperature => ChoiceMethod::Sample {
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

/// The purpose of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceRow {
    /// Index in [`ChoiceBatch::choices`] of the request that gets the token, or the one of
    /// [`ChoiceRow::HOST`].
    pub request: u32,
    /// Number of output positions after the request's own: the depth of the node in a chain or
    /// tree of drafts.
    pub depth: u32,
}

impl ChoiceRow {
    /// A row that the host reads, whether or not a device chooses for its request.
    pub const HOST: Self = Self {
        request: u32::MAX,
        depth: 0,
    };
}

/// The drafts of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftedRow {
    /// Row of logits of the request's last known token, node 0. The rows of its drafted nodes
    /// follow it.
    pub logits: u32,
    /// Index in the batch of node 0. The tokens of the drafted nodes follow it.
    pub token: u32,
    /// Number of drafted nodes.
    pub nodes: u32,
    /// Start of the nodes' parents in [`ChoiceBatch::parents`]. `None` if each node follows the
    /// one before.
    pub parents: Option<u32>,
}

/// The rules by which the wanted logits of a batch become tokens. If it is empty, the host
/// chooses all.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChoiceBatch<'a> {
    /// The requests that get tokens.
    pub choices: &'a [Choice],
    /// For each row of wanted logits, its purpose.
    pub rows: &'a [ChoiceRow],
    /// For each request, its drafts.
    pub drafted: &'a [DraftedRow],
    /// For each drafted node of a tree, the number of its parent, which is less than its own.
    pub parents: &'a [u32],
}

impl ChoiceBatch<'_> {
    /// Returns true if the host chooses the tokens of a request.
    pub fn is_hosts(&self, request: usize) -> bool {
        let choice = self.choices.get(request);
        choice.is_none_or(|choice| choice.how == ChoiceMethod::Host)
    }
    /// Returns true if the host reads a row of logits.
    pub fn is_hosts_row(&self, row: usize) -> bool {
        let row = self.rows.get(row);
        row.is_none_or(|row| self.is_hosts(row.request as usize))
    }
}

/// The largest [`ChoiceBatch`] that fits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChoiceLimits {
    /// Number of requests that get tokens.
    pub requests: usize,
    /// Number of rows of wanted logits.
    pub rows: usize,
    /// Number of entries of [`ChoiceBatch::parents`].
    pub parents: usize,
    /// Most tokens that one request gets.
    pub most: usize,
}

impl ChoiceLimits {
    /// Returns the room that `batch` takes.
    pub fn of(batch: &ChoiceBatch<'_>) -> Self {
        let tokens = batch.drafted.iter().map(|row| row.nodes as usize + 1);
        Self {
            requests: batch.choices.len(),
            rows: batch.rows.len(),
            parents: batch.parents.len(),
            most: tokens.max().unwrap_or(0),
        }
    }

    /// Returns the most drafts of a request that the device reports: the drafts of its chain,
    /// or in a tree as many as it has parents.
    pub fn nodes(&self) -> usize {
        let in_tree = self.parents.checked_div(self.requests).unwrap_or(0);
        self.most.saturating_sub(1).max(in_tree)
    }

    /// Returns the number of words in which a device reports the outcomes of `requests`
    /// requests. With `drafts`, devices make the drafts, and report them too.
    pub fn outcome_words(&self, requests: usize, drafts: bool) -> usize {
        let each = if self.parents > 0 { 2 } else { 1 };
        let drafted = if drafts { each * self.nodes() } else { 0 };
        requests * (2 * self.most + drafted)
    }

    /// Returns true if there is room for `batch`. If a request has more drafts than it may get
    /// tokens, the rest of its drafts is not looked at.
    pub fn hold(&self, batch: &Self) -> bool {
        batch.requests <= self.requests
            && batch.rows <= self.rows
            && batch.parents <= self.parents
            && (batch.requests == 0 || self.most > 0)
    }
}

/// Returns the first rule of kernels that `batch` breaks. The batch belongs to `tokens` tokens,
/// of which `wanted` are wanted.
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

    fn how(params: &SamplingParams, position: u64) -> ChoiceMethod {
        Choice::of(params, position).how
    }

    #[test]
    fn what_needs_more_than_logits_is_the_hosts() {
        let plain = SamplingParams::default();
        assert!(matches!(how(&plain, 0), ChoiceMethod::Sample { .. }));
        assert_eq!(how(&SamplingParams::greedy(), 0), ChoiceMethod::Greedy);
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
            assert_eq!(how(&params, 0), ChoiceMethod::Host);
        }
        let least = SamplingParams {
            min_new_tokens: 3,
            stop_token_ids: vec![2],
            ..SamplingParams::greedy()
        };
        assert_eq!(how(&least, 2), ChoiceMethod::Host);
        assert_eq!(how(&least, 3), ChoiceMethod::Greedy);
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
        // Too few tokens, then too few logits.
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
