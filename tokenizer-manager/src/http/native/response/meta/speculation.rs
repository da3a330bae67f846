//! Counts of speculation for one choice, under SGLang's names.

use lockstep_types::request::SpeculationUsage;
use serde::Serialize;

/// Fields of `meta_info`. Proposed drafts are drafted tokens that were verified, in all
/// branches. Correct drafts are proposed drafts that were accepted.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Speculation {
    spec_verify_ct: u32,
    spec_num_proposed_drafts: u32,
    spec_num_correct_drafts: u32,
    /// Correct drafts per proposed draft.
    spec_accept_rate: f64,
    /// Tokens per verification: the correct drafts, and one token of the target.
    spec_accept_length: f64,
    /// Number of verifications with `i` correct drafts, at index `i`.
    spec_correct_drafts_histogram: Vec<u32>,
    /// Number of verifications with a draft at each position.
    spec_num_proposed_drafts_by_position: Vec<u32>,
    /// Number of verifications that accepted the draft at each position.
    spec_num_correct_drafts_by_position: Vec<u32>,
}

impl From<&SpeculationUsage> for Speculation {
    fn from(usage: &SpeculationUsage) -> Self {
        let correct = usage.accepted_tokens();
        let mut by_position = usage.accepted.clone();
        by_position.resize(usage.proposed.len().max(by_position.len()), 0);
        Self {
            spec_verify_ct: usage.verify_steps,
            spec_num_proposed_drafts: usage.draft_tokens,
            spec_num_correct_drafts: correct,
            spec_accept_rate: ratio(correct, usage.draft_tokens),
            spec_accept_length: 1.0 + ratio(correct, usage.verify_steps),
            spec_correct_drafts_histogram: histogram(usage.verify_steps, &by_position),
            spec_num_proposed_drafts_by_position: usage.proposed.clone(),
            spec_num_correct_drafts_by_position: by_position,
        }
    }
}

/// Returns, at `i`, the number of verifications that accepted exactly `i` positions. A
/// verification that accepts a position also accepts all positions before it. Example:
/// of 4 verifications, 3 accept position 1 and 1 accepts position 2, so 1, 2 and 1
/// accepted exactly 0, 1 and 2 positions.
fn histogram(verify_steps: u32, accepted: &[u32]) -> Vec<u32> {
    let reached = std::iter::once(&verify_steps).chain(accepted);
    let further = accepted.iter().chain(std::iter::once(&0));
    reached
        .zip(further)
        .map(|(here, next)| here.saturating_sub(*next))
        .collect()
}

fn ratio(part: u32, whole: u32) -> f64 {
    f64::from(part) / f64::from(whole.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_tell_what_was_counted() {
        let mut usage = SpeculationUsage::default();
        // Depth, drafted tokens of all branches, accepted positions.
        for (depth, drafted, accepted) in [(3, 3, 3), (3, 3, 0), (2, 4, 1), (3, 3, 1)] {
            usage.count(depth, drafted, accepted);
        }
        assert_eq!(
            Speculation::from(&usage),
            Speculation {
                spec_verify_ct: 4,
                spec_num_proposed_drafts: 13,
                spec_num_correct_drafts: 5,
                spec_accept_rate: 5.0 / 13.0,
                spec_accept_length: 2.25,
                spec_correct_drafts_histogram: vec![1, 2, 0, 1],
                spec_num_proposed_drafts_by_position: vec![4, 4, 3],
                spec_num_correct_drafts_by_position: vec![3, 1, 1],
            }
        );
    }

    #[test]
    fn nothing_accepted_is_a_rate_of_zero() {
        let mut usage = SpeculationUsage::default();
        usage.count(2, 2, 0);
        let fields = Speculation::from(&usage);
        assert_eq!(
            (fields.spec_accept_rate, fields.spec_accept_length),
            (0.0, 1.0)
        );
        assert_eq!(fields.spec_correct_drafts_histogram, [1, 0, 0]);
    }
}
