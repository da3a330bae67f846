//! From logits to a token.

use lockstep_types::sampling::SamplingParams;

use crate::{
    SamplingError, Stream, TokenHistory,
    candidates::Candidates,
    constraint::{most_likely, restrict},
    exp::exp_nonpositive,
    logprob::finite_max,
    mass::{MassScale, at, share},
    uniform_bits,
};

/// Chooses tokens, with scratch memory for one row that is reused.
///
/// The order is that of Hugging Face, vLLM and SGLang: bias, constraint, penalties, minimum
/// length, temperature, top-k, top-p over the tokens that top-k left, min-p.
///
/// Weights are summed as whole numbers ([`MassScale`]), and all else is plain arithmetic of
/// single numbers. So a device that does the same in any order finds the same token.
#[derive(Debug)]
pub struct Sampler {
    vocab: usize,
    scale: MassScale,
    /// Adjusted logits, then weights.
    weights: Vec<f32>,
    candidates: Candidates,
}

/// Inputs of a token besides its logits.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Sampling parameters.
    pub params: &'a SamplingParams,
    /// Counts of the tokens so far. They are only read if `params` has penalties.
    pub history: &'a TokenHistory,
    /// Number of output tokens so far: the counter of the generator.
    pub position: u64,
    /// The tokens that a constraint allows, as [`crate::TokenConstraint::allowed`] returns them;
    /// `None` = all.
    pub allowed: Option<&'a [u32]>,
}

/// Keeps logits finite under all penalties and biases.
const BOUND: f32 = 1e30;

impl Sampler {
    /// Makes a sampler for rows of `vocab` logits.
    pub fn new(vocab: usize) -> Self {
        Self {
            vocab,
            scale: MassScale::of(vocab),
            weights: Vec::with_capacity(vocab),
            candidates: Candidates::new(),
        }
    }

    /// Returns the token at `request.position`. Greedy (temperature 0) takes the most likely
    /// token, the lowest id among equals.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`], [`SamplingError::WrongWidth`], or
    /// [`SamplingError::Constraint`] if every allowed token has the logit -∞. Parameters
    /// in their documented ranges never cause one.
    pub fn sample(&mut self, logits: &[f32], request: Request<'_>) -> Result<u32, SamplingError> {
        let kept = self.evaluate(logits, request)?;
        let point = || uniform_bits(request.params.seed, request.position, Stream::SAMPLE, 0);
        let (scale, candidates) = (self.scale, &self.candidates);
        Ok(match kept {
            Kept::One(token) => token,
            Kept::Weights => scale.invert(&self.weights, point()),
            Kept::Candidates => candidates.invert(scale, at(point(), candidates.total(scale))),
        })
    }

    /// Sets `out` to the distribution that [`Self::sample`] draws from: one probability per
    /// token, with a sum of 1 within rounding. Temperature 0 gives all probability to the token
    /// that greedy takes.
    ///
    /// # Errors
    /// Those of [`Self::sample`]; `out` then stays as it was.
    pub fn distribution(
        &mut self,
        logits: &[f32],
        request: Request<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), SamplingError> {
        let kept = self.evaluate(logits, request)?;
        out.clear();
        match kept {
            Kept::One(token) => {
                out.resize(self.vocab, 0.0);
                out[token as usize] = 1.0;
            }
            Kept::Weights => {
                let scale = self.scale.reciprocal(self.scale.sum(&self.weights));
                out.extend(self.weights.iter().map(|weight| weight * scale));
            }
            Kept::Candidates => {
                let scale = self.scale.reciprocal(self.candidates.total(self.scale));
                out.resize(self.vocab, 0.0);
                for candidate in &self.candidates.list {
                    out[candidate.token as usize] = candidate.weight * scale;
                }
            }
        }
        Ok(())
    }

    /// Adjusts, weighs and truncates a row.
    fn evaluate(&mut self, logits: &[f32], request: Request<'_>) -> Result<Kept, SamplingError> {
        if logits.len() != self.vocab {
            return Err(SamplingError::WrongWidth {
                found: logits.len(),
                expected: self.vocab,
            });
        }
        let raw_max = finite_max(logits)?;
        let params = request.params;
        let adjusted = params.adjusts_logits(request.position);
        if params.temperature == 0.0 && !adjusted {
            return match request.allowed {
                None => Ok(Kept::One(first_equal(logits, raw_max))),
                Some(allowed) => most_likely(logits, allowed)
                    .map(Kept::One)
                    .ok_or(SamplingError::Constraint),
            };
        }
        self.weights.clear();
        self.weights.extend_from_slice(logits);
        let mut max = raw_max;
        if adjusted || request.allowed.is_some() {
            max = adjust(&mut self.weights, request)?;
        }
        if params.temperature == 0.0 {
            return Ok(Kept::One(first_equal(&self.weights, max)));
        }
        self.weigh(max, params.temperature);
        Ok(self.truncate(params))
    }

    /// Turns adjusted logits into weights, `exp((logit - max) / temperature)`.
    /// Division keeps the largest at exactly 1 for every temperature, however
    /// small.
    fn weigh(&mut self, max: f32, temperature: f32) {
        for weight in &mut self.weights {
            *weight = exp_nonpositive((*weight - max) / temperature);
        }
    }

    /// Drops the tokens that top-k, top-p and min-p exclude.
    fn truncate(&mut self, params: &SamplingParams) -> Kept {
        let top_k = match params.top_k as usize {
            0 => self.vocab,
            k => k.min(self.vocab),
        };
        if top_k == self.vocab && params.top_p >= 1.0 {
            // Without top-k and top-p no order is needed.
            if params.min_p > 0.0 {
                for weight in &mut self.weights {
                    *weight = if *weight >= params.min_p {
                        *weight
                    } else {
                        0.0
                    };
                }
            }
            return Kept::Weights;
        }
        let (candidates, weights, scale) = (&mut self.candidates, &self.weights, self.scale);
        if top_k < self.vocab {
            candidates.select(weights, scale, top_k, u64::MAX);
            let mass = share(params.top_p, candidates.total(scale));
            candidates.truncate(scale, mass);
        } else {
            let mass = share(params.top_p, scale.sum(weights));
            candidates.select(weights, scale, self.vocab, mass);
        }
        // The most likely weight is 1, so min-p compares weights directly.
        let kept = candidates
            .list
            .partition_point(|candidate| candidate.weight >= params.min_p);
        candidates.list.truncate(kept.max(1));
        Kept::Candidates
    }
}

/// The place of the tokens that a row's parameters leave.
enum Kept {
    /// This token is the only one.
    One(u32),
    /// The tokens are in [`Sampler::weights`], in order of ids.
    Weights,
    /// The tokens are in [`Sampler::candidates`], most likely first.
    Candidates,
}

fn first_equal(values: &[f32], value: f32) -> u32 {
    // Whole chunks have no branches, so the compiler makes vectors of them.
    const CHUNK: usize = 64;
    let has = |chunk: &[f32]| chunk.iter().fold(false, |has, v| has | (*v == value));
    let first = values.chunks(CHUNK).position(has).unwrap_or(0) * CHUNK;
    let within = values[first..].iter().position(|v| *v == value);
    (first + within.unwrap_or(0)) as u32
}

/// Applies bias, constraint, penalties and minimum length. Returns the largest logit. A minimum
/// length that would leave no token at all is not applied.
fn adjust(logits: &mut [f32], request: Request<'_>) -> Result<f32, SamplingError> {
    let params = request.params;
    for (token, bias) in &params.logit_bias {
        change(logits, *token, |logit| logit + bias);
    }
    if let Some(allowed) = request.allowed {
        restrict(logits, allowed);
        finite_max(logits).map_err(|_| SamplingError::Constraint)?;
    }
    if params.has_penalties() {
        let repetition = params.repetition_penalty;
        for seen in request.history.seen() {
            change(logits, seen.token, |logit| {
                let mut logit = if logit > 0.0 {
                    logit / repetition
                } else {
                    logit * repetition
                };
                if seen.outputs > 0 {
                    logit -= params.frequency_penalty * seen.outputs as f32;
                    logit -= params.presence_penalty;
                }
                logit
            });
        }
    }
    if params.masks_stops(request.position) {
        let masked = |token: usize| params.stop_token_ids.binary_search(&(token as u32)).is_ok();
        let rest = logits.iter().enumerate();
        let mut rest = rest.filter(|(token, logit)| **logit > f32::NEG_INFINITY && !masked(*token));
        if rest.next().is_some() {
            for token in &params.stop_token_ids {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
    finite_max(logits)
}

/// Changes one logit, keeping it finite. An impossible token stays impossible.
fn change(logits: &mut [f32], token: u32, with: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize)
        && *logit > f32::NEG_INFINITY
    {
        *logit = with(*logit).clamp(-BOUND, BOUND);
    }
}

#[cfg(test)]
mod tests;
