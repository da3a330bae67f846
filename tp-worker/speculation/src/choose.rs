//! Choosing the next token of a chain.

use lockstep_backend::Backend;
use lockstep_sampling::{DraftKey, DraftSampler};

use crate::{Device, DraftRow, Drafts, Drawing};

/// Chooses drafted tokens.
#[derive(Debug)]
pub(crate) struct Chooser {
    /// Draws tokens; `None` if drafts are not sampled.
    sampler: Option<DraftSampler>,
}

impl Chooser {
    /// Makes a chooser for a target of `vocab` tokens. With `sampled`, drafts are sampled.
    pub fn new(vocab: usize, sampled: bool) -> Self {
        Self {
            sampler: sampled.then(|| DraftSampler::new(vocab)),
        }
    }

    /// Returns the generator that the tokens of a row's tree are drawn with; `None` if the
    /// likeliest tokens are drafted. `ids` are the target's numbers of the draft's tokens.
    pub fn drawing<'a, B: Backend>(
        &'a mut self,
        device: &'a Device<'_, B>,
        row: &DraftRow,
        ids: Option<&'a [u32]>,
    ) -> Option<Drawing<'a>> {
        let params = device.requests.sampling(row.slot);
        let sampler = self.sampler.as_mut()?;
        (params.temperature > 0.0).then_some(Drawing {
            sampler,
            ids,
            params,
            position: position(device, row),
        })
    }

    /// Returns the token after `logits`, in the target's numbers, and an upper bound of its
    /// probability if the row may stop by it. The token is the most likely one, the first among
    /// equals. If drafts are sampled and the request samples, it is drawn from the draft's own
    /// distribution, which `drafts` keeps.
    pub fn choose<B: Backend>(
        &mut self,
        device: &Device<'_, B>,
        row: &DraftRow,
        at: usize,
        logits: &[f32],
        ids: Option<&[u32]>,
        drafts: &mut Drafts,
    ) -> (u32, f32) {
        let sampling = device.requests.sampling(row.slot);
        let node = drafts.nodes(at).len() as u32 + 1;
        if let Some(sampler) = &mut self.sampler
            && sampling.temperature > 0.0
            && sampler.set(logits, ids, sampling.temperature).is_ok()
        {
            let key = DraftKey {
                seed: sampling.seed,
                position: position(device, row) + u64::from(node) - 1,
                node,
            };
            if let Some(token) = sampler.draw(key) {
                drafts.distribution(at).copy_from_slice(sampler.law());
                return (token, 1.0);
            }
        }
        let mut best = (0, f32::NEG_INFINITY);
        for (id, logit) in logits.iter().enumerate() {
            if *logit > best.1 {
                best = (id, *logit);
            }
        }
        let bound = match row.may_stop {
            true => bound(logits, best),
            false => 1.0,
        };
        let ids = ids.and_then(|ids| ids.get(best.0));
        (ids.copied().unwrap_or(best.0 as u32), bound)
    }
}

/// Returns an upper bound of the likeliest token's probability. It is exact if this token and
/// the second were the only ones.
fn bound(logits: &[f32], (best, logit): (usize, f32)) -> f32 {
    let (before, after) = (&logits[..best], &logits[logits.len().min(best + 1)..]);
    let others = before.iter().chain(after);
    let second = others.fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
    1.0 / (1.0 + (second - logit).exp())
}

/// Returns the number of the request's output tokens so far.
fn position<B: Backend>(device: &Device<'_, B>, row: &DraftRow) -> u64 {
    let (tokens, prompt) = (
        device.requests.tokens(row.slot).len(),
        device.requests.prompt_len(row.slot),
    );
    (tokens - prompt) as u64
}
