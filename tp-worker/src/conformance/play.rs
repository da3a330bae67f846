//! A scheduler, played by hand, that takes the battery's requests through all their steps.

mod dp_rank;

use lockstep_adaptive::Agreed;
use lockstep_devices::Device;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{EngineConfig, step::StepPlan};

use super::{GroupOptions, LocalGroup, WorkerError, requests};
use dp_rank::DpRank;

/// Number of phases that steps go through in turn. Each DP rank is one phase ahead of the DP
/// rank before it.
const PHASES: u64 = 5;

/// Result of a run of all requests.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Tokens of each text, by request.
    pub(super) texts: Vec<Vec<u32>>,
    /// Number of drafted tokens that became part of a text, or would have if it had not ended.
    pub(super) accepted: usize,
    /// Number of steps at another depth than was agreed for the step before.
    pub(super) switches: usize,
}

/// The state between steps.
pub(super) struct Play {
    group: LocalGroup,
    dp_ranks: Vec<DpRank>,
    step: u64,
    num_steps: u32,
    /// The depth that the ranks agree on; `None` where the depth does not adapt.
    agreed: Option<Agreed>,
    switches: usize,
}

impl Play {
    pub(super) fn new<B: Device>(
        config: &EngineConfig,
        drafters: &DrafterRegistry<B>,
    ) -> Result<Self, WorkerError> {
        let (requests, dp_size) = (requests::all(), config.parallel.dp_size);
        let adaptive = config.speculation.adaptive.as_ref();
        // Requests that share pages are on the same DP rank.
        let bound = |at: usize| requests[at].shares.unwrap_or(at) % dp_size;
        let serve = |dp_rank| {
            let own = (0..requests.len()).filter(|at| bound(*at) == dp_rank);
            DpRank::new(config, &requests, own)
        };
        Ok(Self {
            group: LocalGroup::start_on_device(config, &GroupOptions::new(drafters))?,
            dp_ranks: (0..dp_size).map(serve).collect(),
            step: 0,
            num_steps: config.speculation.num_steps as u32,
            agreed: adaptive.map(|adaptive| Agreed::new(adaptive.initial_depth)),
            switches: 0,
        })
    }

    /// Runs steps until all requests have ended and closed.
    pub(super) fn run(mut self) -> Result<Outcome, WorkerError> {
        while !self.dp_ranks.iter().all(DpRank::is_done) {
            self.step += 1;
            let phase = self.step % PHASES;
            let part = |(number, dp_rank): (usize, &mut DpRank)| {
                let phase = (self.step + number as u64) % PHASES;
                // In phase 4 the batch has no rows; in phase 1 it lacks row 1.
                dp_rank.part(|at| phase == 4 || phase == 1 && at == 1)
            };
            let parts = self.dp_ranks.iter_mut().enumerate().map(part).collect();
            let plan = StepPlan {
                step: self.step,
                draft_steps: self.draft_steps(phase as usize),
                parts,
                ..StepPlan::default()
            };
            let result = self.group.step(plan)?;
            if let (Some(agreed), Some(depth)) = (&mut self.agreed, result.agreed_depth) {
                agreed.decide(self.step, depth);
            }
            for (dp_rank, outputs) in self.dp_ranks.iter_mut().zip(result.outputs) {
                dp_rank.take(outputs);
            }
        }
        let mut outcome = Outcome {
            switches: self.switches,
            ..Outcome::default()
        };
        for (texts, accepted) in self.dp_ranks.into_iter().map(DpRank::outcome) {
            outcome.accepted += accepted;
            outcome.texts.resize(texts.len(), Vec::new());
            for (all, own) in outcome.texts.iter_mut().zip(texts) {
                all.extend(own);
            }
        }
        Ok(outcome)
    }

    /// Returns the depth of the next step: the agreed depth, or without one the phase's.
    fn draft_steps(&mut self, phase: usize) -> u32 {
        let Some(agreed) = &mut self.agreed else {
            let most = self.num_steps;
            return [most, most, 0, most.min(1), most][phase];
        };
        let depth = agreed.depth();
        agreed.begin();
        self.switches += usize::from(agreed.depth() != depth);
        depth
    }
}
