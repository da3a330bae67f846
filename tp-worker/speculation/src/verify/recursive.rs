//! Recursive rejection: children are tried in turn, each against the part of the target's
//! distribution that earlier children left.
//!
//! `p` is the target's distribution, and `qᵢ` the one that child `i` was drawn from given its
//! earlier siblings. Child `xᵢ` is accepted with probability `min(1, p(xᵢ) / qᵢ(xᵢ))`.
//! Otherwise `p` becomes `max(p − qᵢ, 0)`, normalised, for the next child, and after the last
//! child for the token itself (Miao et al., arXiv:2305.09781; without replacement: Jeon et al.,
//! arXiv:2402.14160). With one child this is Leviathan et al.'s rule, arXiv:2211.17192.

use lockstep_sampling::{Sampler, SamplingError, Stream, inverse_cdf, subtract, total, uniform};

use super::{Verifier, VerifyRow, block, children};

impl Verifier {
    /// Accepts a child, or draws from the part that the children left.
    pub(super) fn recursive(
        &mut self,
        number: u32,
        logits: &[f32],
        row: &mut VerifyRow<'_>,
        sampler: &mut Sampler,
    ) -> Result<(), SamplingError> {
        let nodes = row.drafts.nodes(row.row);
        if children(nodes, number).next().is_none() {
            let token = sampler.sample(logits, self.request(row)?)?;
            return self.take(token, None, logits, row);
        }
        let request = self.request(row)?;
        let (seed, position) = (request.params.seed, request.position);
        sampler.distribution(logits, request, &mut self.law)?;
        let mut mass = 1.0;
        for (child, node) in children(nodes, number) {
            // A token that was not drawn from a distribution is certain.
            let proposal = block::law(row, child);
            let token = node.token as usize;
            let p = self.law.get(token).map_or(0.0, |p| f64::from(*p) / mass);
            let q = proposal.map_or(1.0, |q| f64::from(q[token]));
            if uniform(seed, position, Stream::ACCEPT, child) * q < p {
                return self.take(node.token, Some(child), logits, row);
            }
            mass = self.reject(node.token, proposal, mass);
            if mass <= 0.0 {
                // The two distributions are equal except for rounding. A token that the target
                // can't have is never taken, for a constraint may forbid it.
                if p > 0.0 {
                    return self.take(node.token, Some(child), logits, row);
                }
                let token = sampler.sample(logits, self.request(row)?)?;
                return self.take(token, None, logits, row);
            }
        }
        let point = uniform(seed, position, Stream::RESIDUAL, number);
        let token = inverse_cdf(&self.law, point);
        self.take(token, None, logits, row)
    }

    /// Subtracts a rejected child's distribution. Returns the mass that is left.
    fn reject(&mut self, token: u32, proposal: Option<&[f32]>, mass: f64) -> f64 {
        if let Some(q) = proposal {
            return subtract(&mut self.law, mass.recip(), q);
        }
        if let Some(p) = self.law.get_mut(token as usize) {
            *p = 0.0;
        }
        total(&self.law)
    }
}
