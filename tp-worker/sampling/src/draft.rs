//! Sampling tokens to draft.

use crate::{
    SamplingError, Stream,
    exp::exp_nonpositive,
    inverse::{inverse_cdf, total},
    logprob::finite_max,
    uniform,
};

/// Draws tokens to draft, and keeps the distribution that the next one is drawn from.
/// Verification has to know it.
///
/// For each node of a chain or tree, call [`Self::set`] with the draft model's logits there.
/// Then for each child call [`Self::draw`], copy [`Self::law`] into the child's distribution,
/// and call [`Self::exclude`] before the next child, so that siblings are drawn without
/// replacement. The drawn tokens must not decide which nodes are kept: dropping a node because
/// of its token's probability, after it was drawn, changes the text's law.
#[derive(Debug)]
pub struct DraftSampler {
    law: Vec<f32>,
}

/// The key of a drafted token's random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftKey {
    /// The request's seed.
    pub seed: u64,
    /// The output position that the token is drafted for: the number of output tokens so far,
    /// plus the node's depth (from 1), less 1.
    pub position: u64,
    /// The node's number in its row, from 1. A later step may draft for the same position
    /// again, at a smaller depth; the number keeps the two apart. Without it the law of block
    /// verification is wrong, because its outcome depends on drafts that it rejected.
    pub node: u32,
}

impl DraftSampler {
    /// Makes a sampler for a target of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Self {
            law: vec![0.0; vocab],
        }
    }

    /// Sets the distribution to the softmax of `logits / temperature`. Logit `i` belongs to
    /// token `ids[i]`, or to token `i` without `ids`. Tokens without a logit have no
    /// probability. Temperature 0 gives all probability to the most likely token, the first
    /// among equals.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`]; [`SamplingError::WrongWidth`] if there are more logits
    /// than tokens or ids, or if an id is past the vocabulary. The distribution is then all
    /// zero.
    pub fn set(
        &mut self,
        logits: &[f32],
        ids: Option<&[u32]>,
        temperature: f32,
    ) -> Result<(), SamplingError> {
        self.law.fill(0.0);
        let expected = ids.map_or(self.law.len(), <[u32]>::len);
        if logits.len() > expected {
            return Err(SamplingError::WrongWidth {
                found: logits.len(),
                expected,
            });
        }
        let max = finite_max(logits)?;
        let mut taken = false;
        let weight = |logit: f32| {
            if temperature > 0.0 {
                exp_nonpositive((logit - max) / temperature)
            } else {
                let first = logit == max && !taken;
                taken |= first;
                f32::from(first)
            }
        };
        self.spread(logits.iter().copied().map(weight), ids)?;
        self.normalise();
        Ok(())
    }

    /// Draws a token; `None` if [`Self::exclude`] left none.
    pub fn draw(&self, key: DraftKey) -> Option<u32> {
        let point = uniform(key.seed, key.position, Stream::DRAFT, key.node);
        let token = inverse_cdf(&self.law, point);
        let possible = self.law.get(token as usize).is_some_and(|p| *p > 0.0);
        possible.then_some(token)
    }

    /// Returns the distribution that [`Self::draw`] draws from, over the target's vocabulary.
    /// It is all zero if nothing is left.
    pub fn law(&self) -> &[f32] {
        &self.law
    }

    /// Removes a token and normalises the rest.
    pub fn exclude(&mut self, token: u32) {
        if let Some(p) = self.law.get_mut(token as usize) {
            *p = 0.0;
        }
        self.normalise();
    }

    /// Puts weights at their tokens.
    fn spread(
        &mut self,
        weights: impl Iterator<Item = f32>,
        ids: Option<&[u32]>,
    ) -> Result<(), SamplingError> {
        let Some(ids) = ids else {
            self.law.iter_mut().zip(weights).for_each(|(p, w)| *p = w);
            return Ok(());
        };
        for (id, weight) in ids.iter().zip(weights) {
            let expected = self.law.len();
            let Some(p) = self.law.get_mut(*id as usize) else {
                self.law.fill(0.0);
                return Err(SamplingError::WrongWidth {
                    found: *id as usize + 1,
                    expected,
                });
            };
            *p = weight;
        }
        Ok(())
    }

    fn normalise(&mut self) {
        let mass = total(&self.law);
        if mass > 0.0 {
            let scale = mass.recip() as f32;
            self.law.iter_mut().for_each(|p| *p *= scale);
        }
    }
}

#[cfg(test)]
mod tests;
