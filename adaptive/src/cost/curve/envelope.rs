//! Upper bounds on times that were measured before serving.
//!
//! Other programs on the machine make a step longer, never shorter. So a measured time may be
//! too long. The times of neighbouring sizes bound it, and the curve starts from the lower of
//! time and bound.

use super::Proof;

/// Slack of the bound from smaller sizes, in eighths: a time may reach 9/8 of the bound. The
/// times of the smaller sizes are the shortest of several steps, so the bound is a tight one.
const SLACK: u64 = 9;

/// Lowers each time to the bounds that follow from the other sizes:
///
/// * A size takes no longer than a larger size. Example: 8 tokens take 12 ms, and 16 tokens take
///   10 ms. Then 8 tokens count as 10 ms.
/// * A size takes no longer than several steps of a smaller size, with [`SLACK`]. Example: 12
///   tokens fit in two steps of 8 tokens. With 10 ms for each of these, 12 tokens count as at
///   most 22.5 ms.
pub(super) fn lower(sizes: &[u32], ns: &mut [u64]) {
    fall(ns);
    for at in 1..sizes.len() {
        let turns = |below: usize| u64::from(sizes[at].div_ceil(sizes[below].max(1)));
        let most = (0..at).map(|below| turns(below).saturating_mul(ns[below]));
        if let Some(most) = most.min().filter(|most| *most > 0) {
            ns[at] = ns[at].min(most.saturating_mul(SLACK) / 8);
        }
    }
    fall(ns);
}

/// Restores the order of the times after some have changed: no size takes longer than a larger
/// one. A time that is not proven is raised to the last proven time below it. Then every time is
/// lowered to the times above it.
pub(super) fn keep_rising(ns: &mut [u64], proofs: &[Proof]) {
    let mut least = 0;
    for (ns, proof) in ns.iter_mut().zip(proofs) {
        if proof.is_proven() {
            least = *ns;
        } else {
            *ns = (*ns).max(least);
        }
    }
    fall(ns);
}

/// Lowers times so that no size takes longer than a larger one. Zeros are unknown times and stay.
fn fall(ns: &mut [u64]) {
    let mut most = u64::MAX;
    for ns in ns.iter_mut().rev().filter(|ns| **ns > 0) {
        *ns = (*ns).min(most);
        most = *ns;
    }
}
