//! The depth worth drafting for one request, by the results of its earlier drafts.

/// Number of positions that are counted one by one. Deeper positions count as the last one.
const POSITIONS: usize = 16;

/// Least rate of acceptance, in parts of [`ONE`], at which a draft is worth its share of a
/// pass: one in sixteen. With one in eight, a device whose passes hardly grow with their tokens
/// lost up to two in a hundred tokens.
const LEAST: u32 = ONE / 16;
const ONE: u32 = 1 << 16;

/// Number of drafts at risk at a position that are remembered. Then half of them are forgotten,
/// so that newer drafts count for more.
const MEMORY: u32 = 32;

/// Every so many drafts, a request drafts as deep as agreed, whatever the results before. A
/// depth that is never tried can't turn out better.
const RETRY: u32 = 16;

/// Results of one request's drafts, by position.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    at_risk: [u32; POSITIONS],
    accepted: [u32; POSITIONS],
    drafts: u32,
}

/// The most depth of each slot's request, by its past alone. The chance that a position is
/// reached and accepted is the product of the accepted shares up to it. Drafting stops where
/// that chance falls below one in sixteen. Example: with half of the drafts accepted at each
/// position, the chance at position 5 is 1/32, so 4 positions are drafted.
///
/// The first position is always drafted, so that a group that adapts its depth knows the rate
/// of all its requests there. Only the past decides, not the present drafts, as verification by
/// ratios of probabilities needs it.
#[derive(Debug)]
pub struct OwnDepths(Vec<Past>);

impl OwnDepths {
    /// Makes depths of `slots` slots.
    pub fn new(slots: usize) -> Self {
        Self(vec![Past::default(); slots])
    }

    /// Begins a new request in the slot, without a past.
    pub fn open(&mut self, slot: usize) {
        self.0[slot] = Past::default();
    }

    /// Counts drafts of the slot's request: `proposed` positions were drafted, and the first
    /// `accepted` of them were accepted.
    pub fn count(&mut self, slot: usize, proposed: usize, accepted: usize) {
        let past = &mut self.0[slot];
        if proposed == 0 {
            return;
        }
        let expected = past.worth(proposed);
        if accepted > expected {
            // More was accepted than seemed worth drafting: the text has changed in kind.
            *past = Past {
                drafts: past.drafts,
                ..Past::default()
            };
        }
        past.drafts = past.drafts.wrapping_add(1);
        let proposed = proposed.min(POSITIONS);
        for at in 0..proposed.min(accepted + 1) {
            past.at_risk[at] += 1;
            past.accepted[at] += u32::from(at < accepted);
            if past.at_risk[at] >= MEMORY {
                past.at_risk[at] /= 2;
                past.accepted[at] /= 2;
            }
        }
    }

    /// Returns the depth of the slot's next draft, at most the agreed `steps`.
    pub fn depth(&self, slot: usize, steps: usize) -> usize {
        let past = &self.0[slot];
        match past.drafts % RETRY {
            0 => steps,
            _ => past.worth(steps),
        }
    }
}

impl Past {
    /// Returns the deepest of `steps` positions whose draft is worth it, at least 1.
    fn worth(&self, steps: usize) -> usize {
        let mut reached = ONE;
        for position in 0..steps {
            let at = position.min(POSITIONS - 1);
            // Two more drafts count as at risk, with one and a half of them accepted. So a
            // request with a short past drafts deep.
            let (accepted, at_risk) = (2 * self.accepted[at] + 3, 2 * self.at_risk[at] + 4);
            reached = reached * accepted / at_risk;
            if reached < LEAST {
                return position.max(1).min(steps);
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Drafts as deep as the estimate says, for texts that accept `accepts` positions. Returns
    /// the depth of each draft.
    fn follow(own: &mut OwnDepths, steps: usize, accepts: &[usize]) -> Vec<usize> {
        let drafts = accepts.iter().map(|accepts| {
            let depth = own.depth(0, steps);
            own.count(0, depth, depth.min(*accepts));
            depth
        });
        drafts.collect()
    }

    #[test]
    fn what_is_accepted_is_drafted_as_deep_as_agreed() {
        let mut own = OwnDepths::new(1);
        assert!(
            follow(&mut own, 7, &[7; 100])
                .iter()
                .all(|depth| *depth == 7)
        );
        // Two of three drafts of this text are accepted at each position.
        let mut own = OwnDepths::new(1);
        let some = [0, 7, 1, 7, 3, 7, 2, 7];
        let depths = follow(&mut own, 3, &some.repeat(20));
        assert!(depths.iter().all(|depth| *depth == 3), "{depths:?}");
    }

    #[test]
    fn what_is_rejected_is_drafted_less_and_tried_again() {
        let mut own = OwnDepths::new(1);
        let depths = follow(&mut own, 7, &[0; 200]);
        let (first, later) = depths.split_at(24);
        assert_eq!(first[0], 7);
        let (retries, cut): (Vec<usize>, Vec<usize>) = later.iter().partition(|depth| **depth == 7);
        assert!(cut.iter().all(|depth| *depth == 1), "{depths:?}");
        assert_eq!(retries.len(), later.len() / RETRY as usize);
    }

    /// Drafts behind a rejection were not tried.
    #[test]
    fn a_rejection_counts_where_it_happened() {
        let mut own = OwnDepths::new(1);
        let depths = follow(&mut own, 7, &[0, 7].repeat(40));
        assert!(depths.iter().all(|depth| *depth == 7), "{depths:?}");
    }

    #[test]
    fn a_text_that_turns_easy_is_noticed_at_the_next_trial() {
        let mut own = OwnDepths::new(1);
        follow(&mut own, 5, &[0; 200]);
        let depths = follow(&mut own, 5, &[5; 40]);
        let trial = depths.iter().position(|depth| *depth == 5).unwrap();
        assert!(trial < RETRY as usize);
        assert!(
            depths[trial..].iter().all(|depth| *depth == 5),
            "{depths:?}"
        );
    }

    #[test]
    fn another_request_begins_anew() {
        let mut own = OwnDepths::new(2);
        follow(&mut own, 5, &[0; 30]);
        own.open(0);
        assert_eq!((own.depth(0, 5), own.depth(1, 5)), (5, 5));
    }

    proptest! {
        #[test]
        fn a_cut_leaves_a_position_and_adds_none(
            drafts in prop::collection::vec((1usize..40, 0usize..40), 0..200),
            steps in 0usize..40,
        ) {
            let mut own = OwnDepths::new(1);
            for (proposed, accepted) in drafts {
                own.count(0, proposed, accepted.min(proposed));
                let depth = own.depth(0, steps);
                prop_assert!(depth <= steps && depth >= steps.min(1));
            }
        }
    }
}
