//! The planner's configuration, fixed at start.

use lockstep_types::{EngineConfig, StepLimits, WindowNeed};

use crate::{DraftKv, PlannerError, ReserveConfig, SchedulePolicy};

/// Tokens between states that are kept in outputs. A state costs as much memory as some thousand
/// tokens, and the next turn of a conversation computes at most as many tokens again as lie
/// between two of them.
const STATE_INTERVAL: u32 = 64;

/// A moment, in milliseconds on any clock that never goes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// Number by which the caller names a request; unique while the request lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Sizes, limits and policies; see [`EngineConfig`] for the flags behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannerConfig {
    /// Number of DP ranks. Each has its own slots, pages and prefix cache, and a part of each
    /// step.
    pub dp_size: u32,
    /// Slots of a DP rank, which is also the most requests that run there at once.
    pub max_running_requests: u32,
    /// Most waiting requests; further ones are refused.
    pub max_queued_requests: u32,
    /// Most waiting tokens; further requests are refused.
    pub max_queued_tokens: u64,
    /// Most new tokens of one step in a DP rank.
    pub max_prefill_tokens: u32,
    /// Most prompt tokens of one step in a DP rank; longer prompts are cut. `None` = prompts
    /// are not cut.
    pub chunked_prefill_size: Option<u32>,
    /// KV tokens per page.
    pub page_size: u32,
    /// Groups of layers with equal caches that keep all positions. Each has its own pages.
    pub kv_groups: u32,
    /// Pages of the KV pool of each of these groups in a DP rank. Page 0 is never handed out:
    /// the padded rows of a captured graph write there.
    pub num_pages: u32,
    /// Windows of further groups of layers, which see only so many positions, their own
    /// included. They come behind the other groups in plans.
    pub windows: Vec<u32>,
    /// Pages of the KV pool of each group with a window in a DP rank, page 0 included; see
    /// [`PlannerConfig::least_window_pages`].
    pub window_pages: u32,
    /// States of recurrent layers in a DP rank, at least one for each slot; 0 for models without
    /// such layers. Those beyond the slots' are for the prefix cache.
    pub states: u32,
    /// Least number of tokens between the positions in outputs at which states are kept. The
    /// distance is a multiple of the page size, and at least what a step commits.
    pub state_interval: u32,
    /// Most tokens of one request, prompt and output together.
    pub context_length: u32,
    /// True for up to two steps in flight, false for one.
    pub overlap: bool,
    /// True to keep the KV of past requests for later ones with the same prefix.
    pub radix_cache: bool,
    /// Order of admission among requests of one priority.
    pub schedule_policy: SchedulePolicy,
    /// True if requests may carry a priority other than 0.
    pub priority_scheduling: bool,
    /// Most time from arrival to the end of a request.
    pub request_timeout_ms: Option<u64>,
    /// Most time from arrival to the first admission.
    pub queue_timeout_ms: Option<u64>,
    /// Most that a decode step may write and commit. Each plan sets its own number of draft
    /// steps.
    pub reserve: ReserveConfig,
    /// Draft steps of the first plans, until the workers agree on others.
    pub initial_depth: u32,
    /// True if the workers agree on the depth of drafts from step to step.
    pub adapts: bool,
    /// KV that drafting keeps per cached token, which decides what prefix keys are made of.
    pub draft_kv: DraftKv,
    /// Number of a request's last positions that its drafter can take in late, after steps that
    /// drafted nothing; 0 = the drafter takes in every step at once.
    pub pause_window: u32,
    /// True to record additions to the prefix cache and removals from it, see
    /// [`Planner::cache_events`](crate::Planner::cache_events).
    pub kv_events: bool,
}

impl Default for PlannerConfig {
    fn default() -> Self {
        Self {
            dp_size: 1,
            max_running_requests: 48,
            max_queued_requests: 1024,
            max_queued_tokens: 1 << 20,
            max_prefill_tokens: 16_384,
            chunked_prefill_size: Some(2048),
            page_size: 16,
            kv_groups: 1,
            num_pages: 1025,
            windows: Vec::new(),
            window_pages: 0,
            states: 0,
            state_interval: STATE_INTERVAL,
            context_length: 4096,
            overlap: true,
            radix_cache: true,
            schedule_policy: SchedulePolicy::Fcfs,
            priority_scheduling: false,
            request_timeout_ms: None,
            queue_timeout_ms: None,
            reserve: ReserveConfig::none(),
            initial_depth: u32::MAX,
            adapts: false,
            draft_kv: DraftKv::None,
            pause_window: 0,
            kv_events: false,
        }
    }
}

/// Leaves [`PlannerConfig::kv_events`] off.
impl From<&EngineConfig> for PlannerConfig {
    fn from(engine: &EngineConfig) -> Self {
        let EngineConfig {
            schedule,
            kv,
            speculation,
            timeouts,
            ..
        } = engine;
        let schedule = schedule.of_dp_rank(engine.parallel.dp_size);
        // Sizes are checked to fit when the configuration is resolved.
        let size = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let windows: Vec<u32> = engine.model.kv_windows().into_iter().map(size).collect();
        Self {
            dp_size: size(engine.parallel.dp_size),
            max_running_requests: size(schedule.max_running_requests),
            max_queued_requests: size(schedule.max_queued_requests),
            max_queued_tokens: schedule.max_queued_tokens as u64,
            max_prefill_tokens: size(schedule.max_prefill_tokens),
            chunked_prefill_size: schedule.chunked_prefill_size.map(size),
            page_size: size(kv.page_size),
            kv_groups: size(engine.model.kv_groups().len() - windows.len()),
            num_pages: size(kv.num_pages),
            window_pages: size(engine.kv_pages().window),
            windows,
            states: size(kv.states),
            state_interval: STATE_INTERVAL,
            context_length: size(engine.server.context_length),
            overlap: schedule.overlap,
            radix_cache: kv.radix_cache,
            schedule_policy: schedule.policy,
            priority_scheduling: schedule.priorities,
            request_timeout_ms: timeouts.request_s.map(|s| s * 1000),
            queue_timeout_ms: timeouts.queue_s.map(|s| s * 1000),
            reserve: speculation.reserve(),
            initial_depth: speculation.initial_depth(),
            adapts: speculation.adaptive.is_some(),
            draft_kv: speculation.draft_kv,
            pause_window: size(speculation.pause_window),
            kv_events: false,
        }
    }
}

impl PlannerConfig {
    /// Returns the KV tokens that requests and cache of a DP rank can hold together.
    pub fn capacity_tokens(&self) -> u64 {
        u64::from(self.num_pages.saturating_sub(1)) * u64::from(self.page_size)
    }

    /// Returns the most new tokens of one part's extends, drafts not counted, for sizing a
    /// worker's buffers. There are at most `max_running_requests` rows, and each may draft.
    pub fn max_step_tokens(&self) -> u32 {
        let rows = self.max_running_requests;
        let chunk = self.chunked_prefill_size.map(|chunk| chunk as usize);
        let (most, context) = (self.max_prefill_tokens, self.context_length);
        // The value comes from one of three `u32`.
        let prompts = StepLimits::prefill_tokens(most as usize, chunk, context as usize) as u32;
        match chunk {
            Some(_) => prompts.max(prompts.div_ceil(4).saturating_add(rows)),
            None => prompts.saturating_add(rows),
        }
    }

    /// Returns the number of all groups: pages of a block in a plan.
    pub fn groups(&self) -> usize {
        self.kv_groups as usize + self.windows.len()
    }

    /// Returns the number of pages of a group, page 0 included.
    pub fn pages_of_group(&self, group: usize) -> u32 {
        match group < self.kv_groups as usize {
            true => self.num_pages,
            false => self.window_pages,
        }
    }

    /// Returns the least [`Self::window_pages`]: with fewer, running requests might find no
    /// page in a group with a window.
    pub fn least_window_pages(&self) -> u32 {
        let size = |value: u32| value as usize;
        let chunk = self.chunked_prefill_size.map(size);
        let (most, context) = (size(self.max_prefill_tokens), size(self.context_length));
        let least = WindowNeed {
            window: size(self.windows.iter().copied().max().unwrap_or(0)),
            page_size: size(self.page_size),
            requests: size(self.max_running_requests),
            prompt_tokens: StepLimits::prefill_tokens(most, chunk, context),
            steps_in_flight: self.max_in_flight(),
            reserve: size(self.reserve.alloc_reserve_per_decode(self.overlap)),
        };
        // At most `num_pages`, which is a `u32`.
        least.least_pages().min(size(self.num_pages)) as u32
    }

    /// Returns the most prompt tokens of a step without decode rows.
    pub(crate) fn prefill_budget(&self) -> u32 {
        self.chunked_prefill_size
            .map_or(self.max_prefill_tokens, |chunk| {
                chunk.min(self.max_prefill_tokens)
            })
    }

    /// Returns the most steps that may be planned and not yet completed.
    pub fn max_in_flight(&self) -> usize {
        if self.overlap { 2 } else { 1 }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`PlannerError::Config`] names the field and the remedy.
    pub fn validate(&self) -> Result<(), PlannerError> {
        let positive = [
            ("dp_size", u64::from(self.dp_size)),
            ("max_running_requests", u64::from(self.max_running_requests)),
            ("max_queued_requests", u64::from(self.max_queued_requests)),
            ("max_queued_tokens", self.max_queued_tokens),
            ("max_prefill_tokens", u64::from(self.max_prefill_tokens)),
            ("page_size", u64::from(self.page_size)),
            ("kv_groups", u64::from(self.kv_groups)),
            ("context_length", u64::from(self.context_length)),
            (
                "chunked_prefill_size",
                u64::from(self.chunked_prefill_size.unwrap_or(1)),
            ),
        ];
        for (field, value) in positive {
            if value == 0 {
                return Err(PlannerError::Config {
                    field,
                    message: "must be at least 1".into(),
                });
            }
        }
        if self.num_pages < 2 {
            return Err(PlannerError::Config {
                field: "num_pages",
                message: "must be at least 2, for page 0 is kept for padding; \
                          raise --max-total-tokens or --mem-fraction-static"
                    .into(),
            });
        }
        if u64::from(self.num_pages) * u64::from(self.page_size) > u64::from(u32::MAX) {
            return Err(PlannerError::Config {
                field: "num_pages",
                message: "num_pages times page_size must stay below 2^32; \
                          lower --max-total-tokens"
                    .into(),
            });
        }
        self.validate_windows()?;
        if self.states > 0 && self.states < self.max_running_requests {
            return Err(PlannerError::Config {
                field: "states",
                message: format!(
                    "must be at least {}, one for each running request; \
                     raise --max-mamba-cache-size or lower --max-running-requests",
                    self.max_running_requests
                ),
            });
        }
        match self.reserve.fault() {
            Some(message) => Err(PlannerError::Config {
                field: "reserve",
                message: message.into(),
            }),
            None => Ok(()),
        }
    }

    fn validate_windows(&self) -> Result<(), PlannerError> {
        let fault = |field, message| Err(PlannerError::Config { field, message });
        if self.windows.contains(&0) {
            return fault("windows", "must be at least 1 each".into());
        }
        let least = self.least_window_pages();
        if !self.windows.is_empty() && self.window_pages < least {
            let message = format!(
                "must be at least {least}, for what running requests see; \
                 lower --max-running-requests or --chunked-prefill-size"
            );
            return fault("window_pages", message);
        }
        Ok(())
    }
}
