//! Which token a chain goes on with.

use lockstep_backend::Backend;
use lockstep_sampling::{DraftKey, DraftSampler};

use crate::{Device, DraftRow, Drafts};

/// Chooses drafted tokens.
#[derive(Debug)]
pub(crate) struct Chooser {
    /// `None` where drafts are not sampled.
    sampler: Option<DraftSampler>,
}

impl Chooser {
    /// For a target of `vocab` tokens whose drafts are sampled, or are not.
    pub fn new(vocab: usize, sampled: bool) -> Self {
        Self {
            sampler: sampled.then(|| DraftSampler::new(vocab)),
        }
    }

    /// The most likely token after `logits`, the first among equals, as the
    /// target numbers it. Where drafts are sampled and the request samples, a
    /// token drawn from the draft's own distribution, which `drafts` keeps.
    pub fn choose<B: Backend>(
        &mut self,
        device: &Device<'_, B>,
        row: &DraftRow,
        at: usize,
        logits: &[f32],
        ids: Option<&[u32]>,
        drafts: &mut Drafts,
    ) -> u32 {
        let sampling = device.requests.sampling(row.slot);
        let node = drafts.nodes(at).len() as u32 + 1;
        if let Some(sampler) = &mut self.sampler
            && sampling.temperature > 0.0
            && sampler.set(logits, ids, sampling.temperature).is_ok()
        {
            let output = row.kv_len + 1 - device.requests.prompt_len(row.slot);
            let key = DraftKey {
                seed: sampling.seed,
                position: output as u64 + u64::from(node) - 1,
                node,
            };
            if let Some(token) = sampler.draw(key) {
                drafts.distribution(at).copy_from_slice(sampler.law());
                return token;
            }
        }
        let mut best = (0, f32::NEG_INFINITY);
        for (id, logit) in logits.iter().enumerate() {
            if *logit > best.1 {
                best = (id, *logit);
            }
        }
        let ids = ids.and_then(|ids| ids.get(best.0));
        ids.copied().unwrap_or(best.0 as u32)
    }
}
