//! STREAKS: an example of a user's own policy for adaptive depth.

use lockstep_adaptive::{AdaptiveConfig, Digest, Moment, Policy, PolicyFactory};

/// Number of steps in a row that must agree before the depth moves.
const STREAK: u32 = 4;

/// Policy that goes one candidate deeper after four steps in a row whose drafts were
/// all accepted. It goes one candidate less deep after four steps in a row with less
/// than half of the drafts accepted. A step at depth 0 has no drafts, so all of them
/// count as accepted, and the policy leaves depth 0 after a while.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streaks;

/// State of the policy, the same on all ranks.
#[derive(Debug)]
struct Streak {
    depth: u32,
    /// Number of steps in a row that spoke for a larger depth. `shallower` counts the
    /// steps that spoke for a smaller one.
    deeper: u32,
    shallower: u32,
}

impl PolicyFactory for Streaks {
    fn name(&self) -> &str {
        "streaks"
    }

    fn summary(&self) -> &str {
        "deeper after full acceptance in a row, less deep after rejections in a row"
    }

    /// The policy has no parameters.
    fn obeys(&self, _key: &str) -> bool {
        false
    }

    /// The policy needs no measured costs, so nothing is measured before serving.
    fn reads_costs(&self) -> bool {
        false
    }

    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(Streak {
            depth: config.initial_depth,
            deeper: 0,
            shallower: 0,
        })
    }
}

impl Policy for Streak {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let seen = moment.seen;
        let proposed: u32 = seen.at_risk.iter().sum();
        let accepted: u32 = seen.accepted.iter().sum();
        // A step without drafts counts as fully accepted.
        (self.deeper, self.shallower) = match (proposed, accepted) {
            (proposed, accepted) if proposed == accepted => (self.deeper + 1, 0),
            (proposed, accepted) if accepted * 2 < proposed => (0, self.shallower + 1),
            _ => (0, 0),
        };
        let mut candidates = moment.candidates.iter().copied();
        let next = if self.deeper >= STREAK {
            candidates.find(|depth| *depth > self.depth)
        } else if self.shallower >= STREAK {
            candidates.rfind(|depth| *depth < self.depth)
        } else {
            None
        };
        if let Some(depth) = next {
            (self.depth, self.deeper, self.shallower) = (depth, 0, 0);
        }
        self.depth
    }

    fn digest(&self, digest: &mut Digest) {
        digest.list(&[self.depth, self.deeper, self.shallower]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockstep_adaptive::{BatchSlot, Decider, DepthRange, Policies, Row, Seen, Tier};

    use super::*;

    #[test]
    fn streaks_move_the_depth_by_one_candidate() {
        let depths = [0, 1, 3, 7];
        let tier = |depth| Tier {
            depth,
            tokens: depth + 1,
        };
        let slots = vec![BatchSlot::new(1, depths.to_vec())];
        let config = AdaptiveConfig::new("streaks", 1, depths.map(tier).to_vec(), slots);
        let mut policies = Policies::builtin();
        policies.add(Arc::new(Streaks));
        let mut decider = Decider::new(&config, &policies, &[]).expect("it is known");
        let mut step = 0;
        let mut run = |accepted: u32| {
            for _ in 0..STREAK {
                step += 1;
                let mut row = Row {
                    step,
                    depths: u32::MAX,
                    decodes: 1,
                    ..Row::default()
                };
                row.seen = Seen {
                    decodes: 1,
                    ..Seen::default()
                };
                row.seen.count(3, accepted);
                decider.begin();
                decider.decide(&[row], DepthRange::default());
            }
            decider.depth()
        };
        // A decision takes effect two steps later.
        let found = [3, 3, 3, 0, 0, 0].map(&mut run);
        assert_eq!(found, [1, 3, 7, 7, 3, 1]);
    }
}
