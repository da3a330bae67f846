//! A step in flight, and the check that its ranks agree.

use std::time::Instant;

use lockstep_types::step::{RankResult, StepDigests, StepResult};

/// A step that some ranks have not answered.
pub(super) struct InFlight {
    pub step: u64,
    pub sent: Instant,
    /// Digests of the rank that answered first.
    first: Option<(usize, StepDigests)>,
    /// Outcome by DP rank.
    parts: Vec<Part>,
    /// Number of ranks that have answered.
    pub answered: usize,
}

/// Outcome of a step on one DP rank, as far as known.
#[derive(Clone, Default)]
struct Part {
    /// Digests of the DP rank's first rank to answer.
    first: Option<(usize, StepDigests)>,
    /// Result of the DP rank's lead.
    brought: Option<RankResult>,
}

impl InFlight {
    /// Makes the record of a plan that is sent now, with `parts` parts.
    pub fn new(step: u64, parts: usize) -> Self {
        Self {
            step,
            sent: Instant::now(),
            first: None,
            parts: vec![Part::default(); parts],
            answered: 0,
        }
    }

    /// Takes the answer of a rank, which may be the lead of its DP rank. With the last of the
    /// leads' answers, returns the result of the step.
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

    /// Compares a rank's digests with the first ones that came.
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

    /// Returns the result of the step, if all leads have answered.
    fn joined(&mut self) -> Option<StepResult> {
        let all = self.parts.iter().all(|part| part.brought.is_some());
        let leads = self.parts.iter_mut().filter_map(|part| part.brought.take());
        all.then(|| StepResult::join(leads))
    }
}
