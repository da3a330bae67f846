//! Depths that were decided and wait for their steps.

/// A depth decided in step `e` is that of step `e + LAG`: as many steps as may be
/// in flight, so that the scheduler knows it before it plans the step.
pub const LAG: u64 = 2;

/// The depths of the steps to come: the planner and every rank keep the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    initial: u32,
    /// Of the next [`LAG`] steps, the next first.
    next: [u32; LAG as usize],
}

impl Agreed {
    /// Nothing is decided yet: every step has the `initial` depth.
    pub fn new(initial: u32) -> Self {
        Self {
            initial,
            next: [initial; LAG as usize],
        }
    }

    /// The depth of the next step, of which no plan may ask more.
    pub fn depth(&self) -> u32 {
        self.next[0]
    }

    /// The next step has begun. Until [`Self::decide`] says otherwise, the last
    /// decision goes on.
    pub fn begin(&mut self) {
        self.next.rotate_left(1);
        self.next[LAG as usize - 1] = self.next[LAG as usize - 2];
    }

    /// What was decided in the step begun last.
    pub fn decide(&mut self, depth: u32) {
        self.next[LAG as usize - 1] = depth;
    }

    /// A new group begins at the initial depth again.
    pub fn reset(&mut self) {
        self.next = [self.initial; LAG as usize];
    }
}
