//! Steps timed before serving: what each depth costs here, by batch size.

use lockstep_adaptive::Seen;
use lockstep_backend::Backend;
use lockstep_model::{LoadPhase, LoadProgress};
use lockstep_types::{
    sampling::{LogprobParams, SamplingParams},
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

use super::{Worker, WorkerError, agree, digest::Digests};

mod cells;

use cells::{Cells, total_us};

/// Rounds over all sizes and depths, of which the shortest times of each are kept:
/// who else uses the machine slows bursts of steps, which seldom meet one size in
/// every round.
/// Where steps are short, more rounds are run until they have taken a while.
const ROUNDS: u64 = 3;
const MOST_ROUNDS: u64 = 16;
const SPREAD_US: u64 = 500_000;

/// Sizes of which times are [doubtful](Cells::doubtful) are run again, as long as
/// that takes no more than another such while, or than one round took.
const AGAIN_US: u64 = SPREAD_US;

/// Beyond so many microseconds of timed steps a round tries no larger batch. All
/// ranks know the slowest one's times, and stop alike.
const ROUND_US: u64 = 3_000_000;

/// Passes of so many drafts fill the gap between batches of 1, 2, 4 and so on at
/// depths 0 and 1: devices take tokens in groups, and where a pass of twelve costs
/// what one of eight does, the depth to run is another one.
const MIDDLE: u32 = 2;

/// No larger batch is timed at the greatest depth once a step there took so many
/// microseconds: its times tell least, and take longest.
const DEEPEST_US: u64 = 250_000;

/// Tokens of a made-up prompt at the most.
const PROMPT: u32 = 4;

impl<B: Backend + 'static> Worker<B> {
    /// Runs made-up requests at batch sizes 1, 2, 4 and so on, up to the
    /// largest, at depths 0, 1 and 2 and, as long as that is quick, the greatest,
    /// and gives what each step took on the slowest rank. All ranks call it
    /// together, before the first plan; the worker is then as if nothing had run.
    /// `progress` hears of every timed step.
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
        // Larger batches may have been left out.
        if done < rounds * of_round {
            tell(rounds * of_round, rounds);
        }
        self.drafting.measure(false);
        self.digests = Digests::new();
        self.last_step = 0;
        Ok(cells.into_seen())
    }

    /// Runs sizes of which times are doubtful again, within a bound. All ranks know
    /// the same times, and stop alike.
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

    /// One step at each size and depth, as far as there is room and time. Depths
    /// descend, so that no drafter has to catch up on steps that drafted nothing.
    fn round(&mut self, sizes: &[u32], told: &mut dyn FnMut()) -> Result<Vec<Seen>, WorkerError> {
        let mut timed = Vec::new();
        let mut spent = 0;
        let mut too_long = false;
        for requests in sizes {
            let Some(made_up) = MadeUp::new(self, *requests) else {
                break;
            };
            let greatest = self.config.speculation.num_steps as u32;
            self.follow(&made_up.prefill(greatest))?;
            for depth in self.measured_depths() {
                if depth > MIDDLE && too_long {
                    continue;
                }
                let seen = self.follow(&made_up.decode(depth))?;
                spent += total_us(&seen);
                too_long |= depth > MIDDLE && total_us(&seen) > DEEPEST_US;
                timed.push(seen);
                told();
            }
            self.follow(&made_up.close())?;
            if spent > ROUND_US {
                break;
            }
        }
        Ok(timed)
    }

    /// Depths whose costs tell those between them, the greatest first.
    fn measured_depths(&self) -> impl Iterator<Item = u32> + use<B> {
        let greatest = self.config.speculation.num_steps as u32;
        let below = [MIDDLE, 1, 0]
            .into_iter()
            .filter(move |depth| *depth < greatest);
        [greatest].into_iter().chain(below)
    }

    /// Runs a plan; gives what it has shown on all ranks together, so that all
    /// know the same.
    fn follow(&mut self, plan: &StepPlan) -> Result<Seen, WorkerError> {
        let plan = StepPlan {
            step: self.last_step + 1,
            ..plan.clone()
        };
        let stages = self.run(&plan)?.stages;
        let own = self.seen(&plan, stages);
        agree::join(&mut self.backend, own)
    }
}

/// Requests of any text, on the first slots and pages.
struct MadeUp {
    requests: u32,
    prompt: u32,
    pages: u32,
    vocab: u32,
    dp_size: usize,
}

impl MadeUp {
    /// So many requests, if slots and pages hold all that is timed.
    fn new<B: Backend + 'static>(worker: &Worker<B>, requests: u32) -> Option<Self> {
        let config = &worker.config;
        let limits = config.step_limits();
        let prompt = PROMPT.min((limits.tokens / requests as usize) as u32);
        let commits: u32 = worker.measured_depths().map(|depth| depth + 1).sum();
        let reserve = config.speculation.reserve();
        let positions = prompt + commits + reserve.alloc_len_per_decode();
        let pages = positions.div_ceil(config.kv.page_size as u32);
        let fits = positions as usize <= limits.positions
            // The first page is kept for padding.
            && (pages * requests) as usize <= config.kv.num_pages.saturating_sub(1);
        (prompt > 1 && fits).then_some(Self {
            requests,
            prompt,
            pages,
            vocab: config.model.vocab_size as u32,
            dp_size: config.parallel.dp_size,
        })
    }

    /// The prompts, in a step at the depth of the first decode rows: otherwise
    /// these would have to catch up.
    fn prefill(&self, depth: u32) -> StepPlan {
        let slots = 0..self.requests;
        let open = |slot| SlotOpen {
            slot,
            token_ids: (0..self.prompt)
                .map(|at| (slot * 7919 + at * 104_729) % self.vocab)
                .collect(),
            prompt_len: self.prompt,
            cached_len: 0,
            drafted: true,
            sampling: SamplingParams::greedy(),
            logprobs: LogprobParams::default(),
            max_draft_steps: None,
        };
        let extend = |slot| SlotExtend {
            slot,
            prefill_len: self.prompt,
            sample: true,
            new_pages: (slot * self.pages + 1..=(slot + 1) * self.pages).collect(),
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

    /// Every DP rank does the same.
    fn plan(&self, draft_steps: u32, part: PlanPart) -> StepPlan {
        StepPlan {
            draft_steps,
            parts: vec![part; self.dp_size],
            ..StepPlan::default()
        }
    }
}
