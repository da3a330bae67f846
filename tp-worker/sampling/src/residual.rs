//! The rest of a distribution that rejected drafts leave.

use crate::inverse::total;

/// Replaces `law` by `max(scale · law − other, 0)` and returns the sum of the result. That is
/// the residual distribution of speculative sampling, not normalised (Leviathan et al.,
/// arXiv:2211.17192, §2.3). Both have one probability per token. Tokens past the end of the
/// shorter one keep theirs.
pub fn subtract(law: &mut [f32], scale: f64, other: &[f32]) -> f64 {
    let scale = scale as f32;
    for (p, q) in law.iter_mut().zip(other) {
        *p = (scale * *p - q).max(0.0);
    }
    total(law)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_the_other_lacks() {
        let mut law = [0.5, 0.25, 0.25];
        assert_eq!(subtract(&mut law, 1.0, &[0.25, 0.5, 0.25]), 0.25);
        assert_eq!(law, [0.25, 0.0, 0.0]);
        let mut law = [0.5, 0.25, 0.25];
        assert_eq!(subtract(&mut law, 0.5, &[0.0, 0.0, 1.0]), 0.375);
        assert_eq!(law, [0.25, 0.125, 0.0]);
    }
}
