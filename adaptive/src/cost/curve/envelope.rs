//! What of measured times is believed: others make steps longer, never shorter.

use super::Proof;

/// A time may be so many eighths of what smaller ones make of it: those were the
/// shortest of several steps.
const SLACK: u64 = 9;

/// Lowers times to what those beside them allow: a larger size takes no less time,
/// and no more than as many turns of a smaller one as it takes.
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

/// Makes times rise again after some have changed. What is not proven yields to
/// what is.
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

/// Nothing takes longer than what is larger.
fn fall(ns: &mut [u64]) {
    let mut most = u64::MAX;
    for ns in ns.iter_mut().rev().filter(|ns| **ns > 0) {
        *ns = (*ns).min(most);
        most = *ns;
    }
}
