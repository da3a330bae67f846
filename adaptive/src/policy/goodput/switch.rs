//! Decision when to move to another depth: after staying has cost enough.

use super::logit::ONE;
use crate::Digest;

/// Loss of a step that does not count as regret.
const FREE: i64 = ONE / 100;
/// Lost steps after which the policy moves, in fixed point.
const ENOUGH: i64 = ONE / 8;
/// Greatest regret that is remembered.
const MOST_REGRET: i64 = 8 * ONE;
/// Number of moves that may follow each other closely, and time that earns another one: 50 a
/// minute. Shorter steps count as `STEP_US`.
const BURST: u64 = 10;
const MOVE_US: u64 = 1_200_000;
const STEP_US: u64 = 10_000;

/// Accumulated regret of staying (CUSUM: Page 1954), beyond the free loss.
#[derive(Debug)]
pub(super) struct Switch {
    regret: i64,
    /// Time earned for moves, in microseconds.
    earned_us: u64,
}

impl Switch {
    pub fn new() -> Self {
        Self {
            regret: 0,
            earned_us: BURST * MOVE_US,
        }
    }

    /// Takes in a step of `us` microseconds.
    pub fn pass(&mut self, us: u64) {
        self.earned_us = (self.earned_us.saturating_add(us.max(STEP_US))).min(BURST * MOVE_US);
    }

    /// Takes in that staying loses the part `loss` of a step. Returns true if it is time to
    /// move at a cost of `cost` steps. The fewer moves are left, the more must have been lost.
    pub fn is_due(&mut self, loss: i64, cost: i64) -> bool {
        self.regret = (self.regret + loss - FREE).clamp(0, MOST_REGRET);
        let left = self.earned_us / MOVE_US;
        let dear = ENOUGH << (BURST / 2).saturating_sub(left);
        let worth = dear.saturating_add(cost).min(MOST_REGRET - 1);
        left > 0 && self.regret > worth
    }

    /// Notes a move to another depth.
    pub fn moved(&mut self) {
        self.spend(1);
        self.regret = 0;
    }

    /// Spends moves for another reason, such as a probe.
    pub fn spend(&mut self, moves: u64) {
        self.earned_us = self.earned_us.saturating_sub(moves * MOVE_US);
    }

    /// Returns true if `moves` moves may be spent for another reason, with some to spare.
    pub fn can_spare(&self, moves: u64) -> bool {
        self.earned_us >= (moves + 2) * MOVE_US
    }

    pub fn digest(&self, digest: &mut Digest) {
        digest.word(self.regret as u64);
        digest.word(self.earned_us);
    }
}
