//! A step on its way, and whether the ranks that answer it agree.

use std::time::Instant;

use lockstep_types::step::{RankResult, StepDigests, StepResult};

/// A step that not every rank has answered.
pub(super) struct InFlight {
    pub step: u64,
    pub sent: Instant,
    /// Digests of the rank that answered first.
    first: Option<(usize, StepDigests)>,
    /// By DP rank.
    parts: Vec<Part>,
    /// Ranks that have.
    pub answered: usize,
}

/// What is known of a step's outcome on one DP rank.
#[derive(Clone, Default)]
struct Part {
    /// Digests of its rank that answered first.
    first: Option<(usize, StepDigests)>,
    /// What its lead brought.
    brought: Option<RankResult>,
}

impl InFlight {
    /// Of a plan that leaves now, with so many parts.
    pub fn new(step: u64, parts: usize) -> Self {
        Self {
            step,
            sent: Instant::now(),
            first: None,
            parts: vec![Part::default(); parts],
            answered: 0,
        }
    }

    /// Takes the answer of a rank, which may lead its DP rank. Gives what the step
    /// brought with the last of the leads' answers.
    ///
    /// # Errors
    /// Names two ranks whose digests differ.
    pub fn take(
        &mut self,
        rank: usize,
        (dp_rank, leads): (usize, bool),
        result: RankResult,
    ) -> Result<Option<StepResult>, String> {
        self.compare(rank, dp_rank, result.digests)?;
        self.answered += 1;
        if !leads {
            return Ok(None);
        }
        self.parts[dp_rank].brought = Some(result);
        Ok(self.joined())
    }

    /// Compares a rank's digests with those that came first.
    fn compare(&mut self, rank: usize, dp_rank: usize, own: StepDigests) -> Result<(), String> {
        let all = (&mut self.first, false);
        let same = (&mut self.parts[dp_rank].first, true);
        for (first, same_dp_rank) in [all, same] {
            let (other, digests) = *first.get_or_insert((rank, own));
            if let Some(difference) = digests.difference(own, same_dp_rank) {
                return Err(format!(
                    "ranks {other} and {rank} diverged in step {}: {difference}",
                    self.step
                ));
            }
        }
        Ok(())
    }

    /// What the step brought, if all leads have answered.
    fn joined(&mut self) -> Option<StepResult> {
        let all = self.parts.iter().all(|part| part.brought.is_some());
        let leads = self.parts.iter_mut().filter_map(|part| part.brought.take());
        all.then(|| StepResult::join(leads))
    }
}
