//! Steps timed before serving: the cost of each depth on this machine, by batch size.

use lockstep_adaptive::Seen;
use lockstep_backend::Backend;
use lockstep_model::{LoadPhase, LoadProgress};
use lockstep_types::{
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

use super::{Worker, WorkerError, agreement};

mod cells;

use cells::{Cells, total_us};

/// Least number of rounds over all sizes and depths, and most rounds. Where steps are short,
/// more rounds run until they have taken `SPREAD_US` microseconds. The shortest times of each
/// size and depth are kept: other users of the machine slow bursts of steps, and a burst seldom
/// meets one size in every round.
const ROUNDS: u64 = 3;
const MOST_ROUNDS: u64 = 16;
const SPREAD_US: u64 = 500_000;

/// Microseconds for sizes with [doubtful](Cells::doubtful) times, which are run again. Where
/// one round takes longer, the limit is the time of one round.
const AGAIN_US: u64 = SPREAD_US;

/// Microseconds of timed steps after which a round tries no larger batch. All ranks know the
/// slowest rank's times, and stop alike.
const ROUND_US: u64 = 3_000_000;

/// A depth that is timed because passes of 3 tokens per request fill the gap between batches of
/// 1, 2, 4 and so on at depths 0 and 1. Devices take tokens in groups: if a pass of twelve
/// tokens costs as much as one of eight, another depth is best.
const MIDDLE: u32 = 2;

/// Longest step at the greatest depth, in microseconds. After a longer one, no larger batch is
/// timed at that depth: such times tell least, and take longest.
const DEEPEST_US: u64 = 250_000;

/// Most tokens of a made-up prompt.
const PROMPT: u32 = 4;

impl<B: Backend + 'static> Worker<B> {
    /// Runs made-up requests at batch sizes 1, 2, 4 and so on, up to the largest. The depths
    /// are 0, 1, 2 and, as long as that is quick, the greatest. Returns the time of each step
    /// on the slowest rank. All ranks call it together, before the first plan; the worker is
    /// then as if nothing had run. `progress` is called at every timed step.
    ///
    /// # Errors
    /// [`WorkerError`] of a step.
    pub(super) fn profile(
        &mut self,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Vec<Seen>, WorkerError> {
        self.drafting.measure(true);
        let largest = self.slots.count() as u32;
        let powers = std::iter::successors(Some(1u32), |size| size.checked_mul(2));
        let powers = powers.take_while(|size| *size < largest);
        let sizes: Vec<u32> = powers.chain([largest]).collect();
        let of_round = (sizes.len() * self.measured_depths().count()) as u64;
        let mut tell = |done, rounds| {
            progress(LoadProgress {
                phase: LoadPhase::Timing,
                done,
                total: rounds * of_round,
            });
        };
        let (mut round, mut rounds, mut done) = (0, MOST_ROUNDS, 0);
        let mut cells = Cells::default();
        while round < rounds {
            let mut count = || {
                done += 1;
                tell(done, rounds);
            };
            let timed = self.round(&sizes, &mut count)?;
            timed.into_iter().for_each(|seen| cells.take(seen));
            round += 1;
            rounds = (SPREAD_US / cells.us().max(1)).clamp(ROUNDS, MOST_ROUNDS);
        }
        self.doubt(&mut cells)?;
        // Some larger batches may have been left out.
        if done < rounds * of_round {
            tell(rounds * of_round, rounds);
        }
        self.drafting.measure(false);
        self.agreement.forget();
        self.last_step = 0;
        Ok(cells.into_seen())
    }

    /// Runs sizes with doubtful times again, within a limit. All ranks know the same times, and
    /// stop alike.
    fn doubt(&mut self, cells: &mut Cells) -> Result<(), WorkerError> {
        let mut left = AGAIN_US.max(cells.us());
        for _ in 0..MOST_ROUNDS {
            let doubtful = cells.doubtful(left);
            if doubtful.is_empty() {
                break;
            }
            for seen in self.round(&doubtful, &mut || {})? {
                left = left.saturating_sub(total_us(&seen));
                cells.take(seen);
            }
        }
        Ok(())
    }

    /// Runs one step at each size and depth, as far as there is room and time. Depths descend,
    /// so that no drafter has to catch up on steps that drafted nothing.
    fn round(&mut self, sizes: &[u32], told: &mut dyn FnMut()) -> Result<Vec<Seen>, WorkerError> {
        let mut timed = Vec::new();
        let mut spent = 0;
        let mut too_long = false;
        for requests in sizes {
            let Some(requests_of_size) = ProfileRequests::new(self, *requests) else {
                break;
            };
            let greatest = self.config.speculation.num_steps as u32;
            self.follow(&requests_of_size.prefill(greatest))?;
            for depth in self.measured_depths() {
                if depth > MIDDLE && too_long {
                    continue;
                }
                let seen = self.follow(&requests_of_size.decode(depth))?;
                spent += total_us(&seen);
                too_long |= depth > MIDDLE && total_us(&seen) > DEEPEST_US;
                timed.push(seen);
                told();
            }
            self.follow(&requests_of_size.close())?;
            if spent > ROUND_US {
                break;
            }
        }
        Ok(timed)
    }

    /// Returns the depths whose costs are measured, the greatest first. The costs of other
    /// depths follow from them.
    fn measured_depths(&self) -> impl Iterator<Item = u32> + use<B> {
        let greatest = self.config.speculation.num_steps as u32;
        let below = [MIDDLE, 1, 0]
            .into_iter()
            .filter(move |depth| *depth < greatest);
        [greatest].into_iter().chain(below)
    }

    /// Runs a plan. Returns its measurements joined over all ranks, so that all ranks know the
    /// same.
    fn follow(&mut self, plan: &StepPlan) -> Result<Seen, WorkerError> {
        let plan = StepPlan {
            step: self.last_step + 1,
            ..plan.clone()
        };
        let stages = self.run(&plan)?.stages;
        let own = self.seen(&plan, stages);
        agreement::join(&mut self.backend, own)
    }
}

/// Requests with arbitrary text, on the first slots and pages.
struct ProfileRequests {
    requests: u32,
    prompt: u32,
    pages: u32,
    groups: usize,
    vocab: u32,
    dp_size: usize,
    has_states: bool,
}

impl ProfileRequests {
    /// Makes `requests` requests; `None` if slots or pages can't hold all that is timed.
    fn new<B: Backend + 'static>(worker: &Worker<B>, requests: u32) -> Option<Self> {
        let config = &worker.config;
        let limits = config.step_limits();
        let prompt = PROMPT.min((limits.tokens / requests as usize) as u32);
        let commits: u32 = worker.measured_depths().map(|depth| depth + 1).sum();
        let reserve = config.speculation.reserve();
        let positions = prompt + commits + reserve.alloc_len_per_decode();
        let pages = positions.div_ceil(config.kv.page_size as u32);
        let fits = positions as usize <= limits.positions
            // The first page is kept for padding. No group has fewer pages than those with
            // windows.
            && (pages * requests) as usize <= config.kv_pages().window.saturating_sub(1);
        (prompt > 1 && fits).then_some(Self {
            requests,
            prompt,
            pages,
            groups: config.model.kv_groups().len(),
            vocab: config.model.vocab_size as u32,
            dp_size: config.parallel.dp_size,
            has_states: config.model.has_states(),
        })
    }

    /// Makes the plan that computes the prompts, at the depth of the first decode rows. At
    /// another depth the drafter would have to catch up in these.
    fn prefill(&self, depth: u32) -> StepPlan {
        let slots = 0..self.requests;
        let open = |slot| {
            let token = |at| (slot * 7919 + at * 104_729) % self.vocab;
            SlotOpen {
                generation: SamplingParams::greedy().into(),
                // No request runs yet, and there is a state for each slot.
                state: self.has_states.then_some(slot),
                ..SlotOpen::new(slot, (0..self.prompt).map(token).collect())
            }
        };
        let extend = |slot| SlotExtend {
            slot,
            prefill_len: self.prompt,
            sample: true,
            new_pages: SlotExtend::pages_of_all(
                slot * self.pages + 1..=(slot + 1) * self.pages,
                self.groups,
            ),
            ..SlotExtend::default()
        };
        let part = PlanPart {
            opens: slots.clone().map(open).collect(),
            extends: slots.map(extend).collect(),
            ..PlanPart::default()
        };
        self.plan(depth, part)
    }

    fn decode(&self, depth: u32) -> StepPlan {
        let extend = |slot| SlotExtend {
            slot,
            sample: true,
            ..SlotExtend::default()
        };
        let part = PlanPart {
            extends: (0..self.requests).map(extend).collect(),
            ..PlanPart::default()
        };
        self.plan(depth, part)
    }

    fn close(&self) -> StepPlan {
        let part = PlanPart {
            closes: (0..self.requests).collect(),
            ..PlanPart::default()
        };
        self.plan(0, part)
    }

    /// Makes a plan in which every DP rank has the same part.
    fn plan(&self, draft_steps: u32, part: PlanPart) -> StepPlan {
        StepPlan {
            draft_steps,
            parts: vec![part; self.dp_size],
            ..StepPlan::default()
        }
    }
}
