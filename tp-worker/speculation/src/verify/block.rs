//! Block verification of a chain (Sun et al., arXiv:2403.10444, algorithm 2).
//!
//! `p(·|i)` is the target's distribution after `i` drafted tokens, `q` the draft's.
//! `x₁ … x_γ` are `γ` drafted tokens. Then:
//! `b₀ = 1`, `bᵢ = min(bᵢ₋₁ · p(xᵢ|i−1) / q(xᵢ|i−1), 1)`;
//! `zᵢ = Σₓ max(bᵢ · p(x|i) − q(x|i), 0)`;
//! `hᵢ = zᵢ / (zᵢ + 1 − bᵢ)` for `i < γ`, `h_γ = b_γ`.
//! The accepted length is the *largest* `i` with `uᵢ < hᵢ`, not the one before the first
//! failure. The next token is drawn in proportion to `max(b · p − q, 0)` there, or from `p`
//! after the whole chain.
//!
//! Logits are not kept. So the next token is drawn at every length that may be the accepted
//! one, and the last such draw stands.

use lockstep_sampling::{
    Sampler, SamplingError, Stream, inverse_cdf, subtract, token_logprob, uniform,
};
use lockstep_types::sampling::TokenLogprob;

use super::{Verified, Verifier, VerifyRow};

/// State of a chain.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// `bᵢ` at the current node.
    ratio: f64,
    /// The largest length accepted so far.
    accepted: Option<Accepted>,
}

/// A length that passed, and the token after it.
#[derive(Debug)]
struct Accepted {
    len: usize,
    token: u32,
    logprob: Option<TokenLogprob>,
}

impl Block {
    pub(super) fn begin(&mut self) {
        self.ratio = 1.0;
        self.accepted = None;
    }
}

/// Returns the distribution that a node was drawn from; `None` if it was not drawn.
pub(super) fn law<'a>(row: &VerifyRow<'a>, number: u32) -> Option<&'a [f32]> {
    let drafts = row.drafts;
    let token = drafts.nodes(row.row)[number as usize - 1].token as usize;
    let law = drafts.probabilities(row.row, number)?;
    law.get(token).is_some_and(|q| *q > 0.0).then_some(law)
}

impl Verifier {
    /// Tests the length that ends at node `number`, and takes the next drafted token
    /// provisionally.
    pub(super) fn block(
        &mut self,
        number: u32,
        logits: &[f32],
        row: &mut VerifyRow<'_>,
        sampler: &mut Sampler,
    ) -> Result<(), SamplingError> {
        let len = number as usize;
        let (seed, position) = (
            row.params.seed,
            row.position + self.verified.tokens.len() as u64,
        );
        // The random number of the output position that the node's token was drafted for.
        let point = match number {
            0 => 0.0,
            _ => uniform(seed, position - 1, Stream::ACCEPT, number),
        };
        let next = number + 1;
        let (Some(node), Some(q)) = (row.drafts.nodes(row.row).get(len), next_law(row, next))
        else {
            if point < self.block.ratio {
                let token = sampler.sample(logits, self.request(row)?)?;
                return self.accept(len, token, logits, row);
            }
            return Ok(());
        };
        sampler.distribution(logits, self.request(row)?, &mut self.law)?;
        let drafted = node.token as usize;
        let ratio = self.block.ratio;
        let wanted = self.law[drafted];
        let next_ratio = ratio * f64::from(wanted) / f64::from(q[drafted]);
        let left = subtract(&mut self.law, ratio, q);
        if number == 0 || point * (left + 1.0 - ratio) < left {
            let token = if left > 0.0 {
                let point = uniform(seed, position, Stream::RESIDUAL, number);
                inverse_cdf(&self.law, point)
            } else if wanted > 0.0 {
                // The two distributions are equal except for rounding. The drafted token is as
                // good as any, and is accepted.
                node.token
            } else {
                // It is never one that the target can't have, for a constraint may forbid it.
                sampler.sample(logits, self.request(row)?)?
            };
            self.accept(len, token, logits, row)?;
        }
        if next_ratio > 0.0 {
            self.block.ratio = next_ratio.min(1.0);
            self.take(node.token, Some(next), logits, row)?;
        }
        Ok(())
    }

    /// Notes that the first `len` drafted tokens, then `token`, are the result so far.
    fn accept(
        &mut self,
        len: usize,
        token: u32,
        logits: &[f32],
        row: &VerifyRow<'_>,
    ) -> Result<(), SamplingError> {
        let logprob = row.logprobs.map(|top| token_logprob(logits, token, top));
        self.block.accepted = Some(Accepted {
            len,
            token,
            logprob: logprob.transpose()?,
        });
        Ok(())
    }

    /// Takes back the tokens after the accepted length, and adds the token that follows it.
    pub(super) fn finish_block(&mut self, row: &mut VerifyRow<'_>) {
        let accepted = self.block.accepted.take();
        let verified = &mut self.verified;
        let penalties = row.params.has_penalties();
        let len = accepted.as_ref().map_or(0, |accepted| accepted.len);
        let constrained = follow(verified, len, accepted.as_ref(), row);
        for token in verified.tokens.drain(len..).filter(|_| penalties) {
            row.history.pop(token);
        }
        verified.logprobs.truncate(len);
        if constrained.is_err() {
            // The row fails.
            verified.tokens.clear();
            verified.logprobs.clear();
        } else if let Some(accepted) = accepted {
            verified.tokens.push(accepted.token);
            verified.logprobs.extend(accepted.logprob);
            if penalties {
                row.history.push(accepted.token);
            }
        }
    }
}

/// Takes the tokens after the accepted length from the row's constraint, and gives it the token
/// that follows.
fn follow(
    verified: &Verified,
    len: usize,
    accepted: Option<&Accepted>,
    row: &mut VerifyRow<'_>,
) -> Result<(), SamplingError> {
    let Some(constraint) = &mut row.constraint else {
        return Ok(());
    };
    constraint.give_back(verified.tokens.len().saturating_sub(len))?;
    accepted.map_or(Ok(()), |accepted| constraint.take(accepted.token))
}

/// Returns the [`law`] of a node that may not exist.
fn next_law<'a>(row: &VerifyRow<'a>, number: u32) -> Option<&'a [f32]> {
    let exists = number as usize <= row.drafts.nodes(row.row).len();
    exists.then(|| law(row, number)).flatten()
}
