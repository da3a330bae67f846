//! Decided depths that wait for their steps.

/// Steps from a decision to its effect: the depth decided in step `e` is that of step
/// `e + LAG`. At most `LAG` steps are in flight, so the scheduler knows a step's depth before
/// it plans the step.
pub const LAG: u64 = 2;

/// Depths of the next steps. The planner and every rank keep the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Agreed {
    initial: u32,
    /// Number of the newest step that has begun; 0 = none.
    begun: u64,
    /// Depths of the [`LAG`] steps after the newest one, in their order.
    next: [u32; LAG as usize],
}

impl Agreed {
    /// Makes the state before any decision: every step has the `initial` depth.
    pub fn new(initial: u32) -> Self {
        Self {
            initial,
            begun: 0,
            next: [initial; LAG as usize],
        }
    }

    /// Returns the depth of the next step. No plan may ask for more.
    pub fn depth(&self) -> u32 {
        self.next[0]
    }

    /// Returns the depth that was decided last.
    pub fn last(&self) -> u32 {
        self.next[LAG as usize - 1]
    }

    /// Begins the next step. The step [`LAG`] later gets the depth that was decided last, unless
    /// [`Self::decide`] changes it.
    pub fn begin(&mut self) {
        self.begun = self.begun.saturating_add(1);
        let last = self.last();
        self.next.rotate_left(1);
        self.next[LAG as usize - 1] = last;
    }

    /// Takes in the depth that was decided in `step`. The depth holds from the step [`LAG`]
    /// after `step` until another decision. Steps that have begun already keep their depth.
    pub fn decide(&mut self, step: u64, depth: u32) {
        let ahead = step.saturating_add(LAG - 1).saturating_sub(self.begun);
        let from = usize::try_from(ahead).unwrap_or(usize::MAX);
        for next in self.next.iter_mut().skip(from) {
            *next = depth;
        }
    }

    /// Begins a new group, with step 1 at the initial depth.
    pub fn reset(&mut self) {
        *self = Self::new(self.initial);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The reference is a list of all steps' depths. One or two steps are in flight, and
        /// some steps decide nothing.
        #[test]
        fn a_depth_waits_for_its_step(
            in_flight in 1u64..=LAG,
            decisions in prop::collection::vec(prop::option::of(0u32..9), 1..60),
        ) {
            let mut agreed = Agreed::new(3);
            let mut depths = vec![3; decisions.len() + 4];
            for step in 1..=decisions.len() as u64 {
                let now = step as usize;
                prop_assert_eq!(agreed.depth(), depths[now]);
                agreed.begin();
                // The result of the step that is no longer in flight is here.
                let Some(done) = (step + 1).checked_sub(in_flight).filter(|done| *done > 0) else {
                    continue;
                };
                if let Some(depth) = decisions[done as usize - 1] {
                    agreed.decide(done, depth);
                    depths[(done + LAG) as usize..].fill(depth);
                }
            }
            agreed.reset();
            prop_assert_eq!(agreed, Agreed::new(3));
        }
    }
}
