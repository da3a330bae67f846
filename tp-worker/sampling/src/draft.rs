//! Sampling tokens to draft.

use crate::{
    SamplingError, Stream,
    exp::exp_nonpositive,
    inverse::{inverse_cdf, total},
    logprob::finite_max,
    uniform,
};

/// Draws tokens to draft, and keeps the distribution that the next one is drawn
/// from, which verification has to know.
///
/// For each node of a chain or tree: [`Self::set`] with the draft model's
/// logits there; then for each child [`Self::draw`], a copy of [`Self::law`]
/// into the child's distribution, and [`Self::exclude`] before the next child,
/// so that siblings are drawn without replacement. Which tokens are drawn must
/// not decide which nodes are kept: dropping a node because of its token's
/// probability after it was drawn changes the text's law.
#[derive(Debug)]
pub struct DraftSampler {
    law: Vec<f32>,
}

/// What a drafted token's random number depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftKey {
    /// The request's seed.
    pub seed: u64,
    /// The output position that the token is drafted for: output tokens so far
    /// plus the node's depth (from 1) less 1.
    pub position: u64,
    /// The node's number in its row, from 1. A position is drafted for again in
    /// a later step, at a smaller depth: the number keeps the two apart. Block
    /// verification's outcome depends on drafts that it rejected, so its law
    /// is wrong without.
    pub node: u32,
}

impl DraftSampler {
    /// A sampler for a target of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Self {
            law: vec![0.0; vocab],
        }
    }

    /// Sets the distribution to the softmax of `logits / temperature`. Logit `i`
    /// is that of token `ids[i]`, or of token `i` without `ids`; tokens that
    /// have no logit have no probability. Temperature 0 gives everything to the
    /// most likely token, the first among equals.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`]; [`SamplingError::WrongWidth`] when there
    /// are more logits than tokens or ids, or an id is past the vocabulary. The
    /// distribution is then all zero.
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

    /// Draws a token; `None` where [`Self::exclude`] left none.
    pub fn draw(&self, key: DraftKey) -> Option<u32> {
        let point = uniform(key.seed, key.position, Stream::DRAFT, key.node);
        let token = inverse_cdf(&self.law, point);
        let possible = self.law.get(token as usize).is_some_and(|p| *p > 0.0);
        possible.then_some(token)
    }

    /// The distribution that [`Self::draw`] draws from, over the target's
    /// vocabulary; all zero where nothing is left.
    pub fn law(&self) -> &[f32] {
        &self.law
    }

    /// Removes a token and normalises what is left.
    pub fn exclude(&mut self, token: u32) {
        if let Some(p) = self.law.get_mut(token as usize) {
            *p = 0.0;
        }
        self.normalise();
    }

    /// Puts weights where their tokens are.
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
