//! The believed part of measured times: other programs make steps longer, never shorter.

use super::Proof;

/// Eighths of the bound from smaller sizes that a time may reach. Times of smaller sizes were
/// the shortest of several steps.
const SLACK: u64 = 9;

/// Lowers times to bounds from the times beside them. A larger size takes no less time than a
/// smaller one. The larger size takes no more than the steps of the smaller size that hold it.
/// Example: 12 tokens take at most two steps of 8 tokens, with some slack.
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

/// Makes times rising again after some have changed. Unproven times yield to proven ones.
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

/// Lowers times so that no size takes longer than a larger one.
fn fall(ns: &mut [u64]) {
    let mut most = u64::MAX;
    for ns in ns.iter_mut().rev().filter(|ns| **ns > 0) {
        *ns = (*ns).min(most);
        most = *ns;
    }
}
