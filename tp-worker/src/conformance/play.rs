//! A scheduler that goes through the battery's requests by hand.

mod dp_rank;

use lockstep_adaptive::Agreed;
use lockstep_devices::Device;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{EngineConfig, step::StepPlan};

use super::{GroupOptions, LocalGroup, WorkerError, requests};
use dp_rank::DpRank;

/// Steps go through these phases in turn, each DP rank one ahead of the one before.
const PHASES: u64 = 5;

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// By request.
    pub(super) texts: Vec<Vec<u32>>,
    /// Drafted tokens that became part of a text, or would have, had it not ended.
    pub(super) accepted: usize,
    /// Steps at another depth than was agreed for the one before.
    pub(super) switches: usize,
}

/// The state between steps.
pub(super) struct Play {
    group: LocalGroup,
    dp_ranks: Vec<DpRank>,
    step: u64,
    num_steps: u32,
    /// What the ranks agree on, if they do.
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
        // Those that share pages are on the same one.
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

    /// Steps until all requests have ended and closed.
    pub(super) fn run(mut self) -> Result<Outcome, WorkerError> {
        while !self.dp_ranks.iter().all(DpRank::is_done) {
            self.step += 1;
            let phase = self.step % PHASES;
            let part = |(number, dp_rank): (usize, &mut DpRank)| {
                let phase = (self.step + number as u64) % PHASES;
                // In one phase nobody is in the batch, in another one row is not.
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

    /// How deep the next step drafts: as agreed, or by the phase.
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
