//! Log-probabilities as reported to clients.

use lockstep_types::sampling::TokenLogprob;

use crate::{
    SamplingError,
    exp::{exp_nonpositive, sum},
};

/// Returns `ln p(token)` under the softmax of `logits`, and the `top` most likely tokens, most
/// likely first, lowest id first among equals. It is the model's own distribution: temperature
/// 1, no penalties, bias or truncation.
///
/// # Errors
/// [`SamplingError::NotFinite`]; [`SamplingError::WrongWidth`] if `token` lies outside the row.
pub fn token_logprob(
    logits: &[f32],
    token: u32,
    top: usize,
) -> Result<TokenLogprob, SamplingError> {
    let logit = *logits
        .get(token as usize)
        .ok_or(SamplingError::WrongWidth {
            found: logits.len(),
            expected: token as usize + 1,
        })?;
    let (max, log_sum) = log_normalizer(logits)?;
    let of = |logit: f32| (f64::from(logit) - f64::from(max) - log_sum) as f32;
    let mut best = most_likely(logits, top);
    for (_, value) in &mut best {
        *value = of(*value);
    }
    Ok(TokenLogprob {
        token_id: token,
        logprob: Some(of(logit)),
        top: best,
    })
}

/// Returns the largest of `logits`.
///
/// # Errors
/// [`SamplingError::NotFinite`] for NaN, +∞ or nothing but -∞.
pub(crate) fn finite_max(logits: &[f32]) -> Result<f32, SamplingError> {
    // Sixteen lanes without branches, which the compiler turns into vectors. A NaN compares as
    // false, so it is noted apart.
    let mut largest = [f32::NEG_INFINITY; 16];
    let mut nans = [0u32; 16];
    let chunks = logits.chunks_exact(16);
    let rest = chunks.remainder();
    let mut take = |chunk: &[f32]| {
        for ((largest, nans), logit) in largest.iter_mut().zip(&mut nans).zip(chunk) {
            *largest = if *logit > *largest { *logit } else { *largest };
            *nans |= u32::from(logit.is_nan());
        }
    };
    chunks.for_each(&mut take);
    take(rest);
    let max = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let bad = nans.iter().any(|nan| *nan != 0);
    if bad || !max.is_finite() {
        let token = logits
            .iter()
            .position(|logit| logit.is_nan() || *logit == f32::INFINITY)
            .unwrap_or(0) as u32;
        return Err(SamplingError::NotFinite { token });
    }
    Ok(max)
}

/// Returns the largest logit and `ln Σ exp(logit - largest)`, summed in one fixed order.
///
/// # Errors
/// [`SamplingError::NotFinite`] for NaN, +∞ or nothing but -∞.
pub fn log_normalizer(logits: &[f32]) -> Result<(f32, f64), SamplingError> {
    let max = finite_max(logits)?;
    let mut total = 0.0;
    let mut weights = [0f32; 512];
    for chunk in logits.chunks(weights.len()) {
        for (weight, logit) in weights.iter_mut().zip(chunk) {
            *weight = exp_nonpositive(logit - max);
        }
        total += sum(&weights[..chunk.len()]);
    }
    Ok((max, total.ln()))
}

/// Returns the `count` largest logits with their tokens, in order. It takes one pass: most
/// logits are only compared with the smallest kept so far.
fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let count = count.min(logits.len());
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (token, logit) in logits.iter().enumerate() {
        if best.len() == count && best.last().is_none_or(|(_, least)| logit <= least) {
            continue;
        }
        let at = best.partition_point(|(_, kept)| kept >= logit);
        best.insert(at, (token as u32, *logit));
        best.truncate(count);
    }
    best
}

#[cfg(test)]
mod tests;
