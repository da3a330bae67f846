//! How deep it is worth to draft for one request, by what became of its drafts.

/// Positions that are counted one by one; whatever lies deeper is as the last.
const POSITIONS: usize = 16;

/// A draft that is accepted less often than this, in parts of [`ONE`], is not
/// worth its share of a pass: one in sixteen. With one in eight a device whose
/// passes hardly grow with their tokens lost up to two in a hundred tokens.
const LEAST: u32 = ONE / 16;
const ONE: u32 = 1 << 16;

/// So many drafts at risk at a position are remembered; then half of them are
/// forgotten, so that what is newer counts for more.
const MEMORY: u32 = 32;

/// Every so many of a request's drafts is as deep as agreed, whatever came of
/// those before: what is never tried can't turn out better.
const RETRY: u32 = 16;

/// What became of one request's drafts, by position.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    at_risk: [u32; POSITIONS],
    accepted: [u32; POSITIONS],
    drafts: u32,
}

/// How deep each slot's request drafts at the most, by its past alone: the
/// chance that a position is reached and accepted is the product of the shares
/// accepted up to it, and where that falls below one in sixteen drafting stops.
///
/// The first position is always drafted, so that a group that adapts its depth
/// knows how all of its requests do there. Only the past decides and not what is
/// being drafted, as the verifications by ratios of probabilities need it.
#[derive(Debug)]
pub struct OwnDepths(Vec<Past>);

impl OwnDepths {
    /// Of `slots` slots.
    pub fn new(slots: usize) -> Self {
        Self(vec![Past::default(); slots])
    }

    /// The slot was given to a request of which nothing is known.
    pub fn open(&mut self, slot: usize) {
        self.0[slot] = Past::default();
    }

    /// The slot's request proposed drafts for `proposed` positions, and those of
    /// the first `accepted` were accepted.
    pub fn count(&mut self, slot: usize, proposed: usize, accepted: usize) {
        let past = &mut self.0[slot];
        if proposed == 0 {
            return;
        }
        let expected = past.worth(proposed);
        if accepted > expected {
            // More than was thought possible: it is another text by now.
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

    /// How deep the slot's next draft goes where up to `steps` are agreed.
    pub fn depth(&self, slot: usize, steps: usize) -> usize {
        let past = &self.0[slot];
        match past.drafts % RETRY {
            0 => steps,
            _ => past.worth(steps),
        }
    }
}

impl Past {
    /// The deepest of `steps` positions whose draft is worth it, at least 1.
    fn worth(&self, steps: usize) -> usize {
        let mut reached = ONE;
        for position in 0..steps {
            let at = position.min(POSITIONS - 1);
            // As if two drafts more had been at risk, of which one and a half
            // were accepted: a request of which little is known drafts deep.
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

    /// Drafts so deep as the estimate says, of texts that accept `accepts`
    /// positions; gives the depth of each.
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
        // A text of which two of three drafts are accepted at each position.
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
