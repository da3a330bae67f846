//! Conversion of a [`GenerateSpec`] to requests at the scheduler. Checks, tokenization
//! and limits are the same for every API.

mod adapter;
mod check;
mod constraint;
mod context;
mod field_names;
mod memory;
mod messages;
mod sampling;
mod seed;
mod spec;
mod speculative;
mod tokenize;
mod tools;
mod totals;
mod trace;

use std::{sync::Arc, time::Duration};

pub use adapter::adapter;
pub use check::{count, integer, non_negative, stops as check_stops};
pub use context::fits;
pub use field_names::FieldNames;
use lockstep_ports::RequestMemory;
use lockstep_types::{
    EngineConfig, TimeoutConfig, generation::GenerationParams, request::Request,
    sampling::LogprobParams,
};
pub use messages::check as check_messages;
pub use sampling::SamplingSpec;
pub use spec::{
    ConstraintPart, ConstraintSpec, GenerateSpec, Input, LogprobSpec, MaxTokens, SpeculativeSpec,
    ThinkingBudget,
};
use tokio::time::Instant;
pub use tools::{ToolNames, check as check_tools};

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    generation::{Generation, GenerationOptions},
    request_stats::RequestStats,
    request_trace::InferenceTrace,
};

/// The running choices of one client request.
#[derive(Debug)]
pub struct Submission {
    /// Tokens of each prompt.
    pub prompts: Vec<Arc<[u32]>>,
    /// Choices per prompt.
    pub n: usize,
    /// All choices: the first prompt's, then the second's, …
    pub generations: Vec<Generation>,
}

/// Result of the checks of a [`GenerateSpec`] that need no tokenizer.
#[derive(Debug)]
struct Checked {
    /// Parameters of every choice, but for its seed.
    generation: GenerationParams,
    n: usize,
    seed: Option<u64>,
    data_parallel_rank: Option<u32>,
}

impl Submission {
    /// Checks, tokenizes and submits the request; `held` is the request's part of the
    /// memory budget. Nothing is submitted unless every choice is valid. Dropping the
    /// future or the result aborts the submitted choices.
    ///
    /// # Errors
    /// 400 for a field out of range or a prompt that does not fit, 429 if too many
    /// requests run and wait, 503 while draining or without a scheduler.
    pub async fn new(
        app: &App,
        mut spec: GenerateSpec,
        held: Option<&RequestMemory>,
    ) -> ApiResult<Self> {
        let arrived = Instant::now();
        let ticket = app.admit()?;
        let mut checked = check_spec(&app.config, &spec)?;
        let stats = RequestStats::current();
        let trace = stats.as_deref().and_then(RequestStats::trace);
        let trace = trace.map(|request| {
            let model = spec.adapter.as_deref().unwrap_or(app.model());
            trace::begin(request, model, &spec, &checked.generation.sampling)
        });
        let inputs = std::mem::take(&mut spec.inputs);
        let submitted = async {
            checked.generation.constraint = constraint::check(app, &spec, trace.as_deref()).await?;
            let prompts = {
                let _span = trace.as_deref().map(|trace| trace.child("tokenize"));
                tokenize::tokenize(&app.config, &app.text, &spec.fields, inputs).await?
            };
            let options = GenerationOptions {
                tokenizer: app.text.tokenizer.clone(),
                latencies: app.metrics.latencies(),
                stops: spec.stops.clone().into(),
                include_stop: spec.include_stop,
                skip_special_tokens: spec.skip_special_tokens,
                answer: spec.answer.clone(),
                min_tokens: checked.generation.sampling.min_new_tokens as usize,
                timeout: timeout(&spec, &app.config.timeouts),
                arrived,
                ticket: Arc::new(ticket),
                trace: trace.clone(),
            };
            Self::submit(app, (&spec, &checked), prompts, &options, held)
        };
        let submitted = submitted.await;
        if let (Err(error), Some(trace)) = (&submitted, &trace) {
            trace.fail(error);
        }
        submitted
    }

    /// Submits all choices of these prompts.
    fn submit(
        app: &App,
        (spec, checked): (&GenerateSpec, &Checked),
        prompts: Vec<Arc<[u32]>>,
        options: &GenerationOptions,
        held: Option<&RequestMemory>,
    ) -> ApiResult<Self> {
        let (logprobs, n) = (checked.generation.logprobs, checked.n);
        totals::tokens(spec, &prompts, n, &app.config.schedule)?;
        let lengths = prompts
            .iter()
            .map(|prompt| context::max_new_tokens(&app.config, spec, prompt.len()))
            .collect::<ApiResult<Vec<u32>>>()?;
        let reserves = memory::reserve(held, spec, (logprobs, n), &prompts, &lengths)?;
        let mut reserves = reserves.into_iter();
        let trace = options.trace.as_deref();
        if let Some(trace) = trace {
            trace.prompts(prompts.iter().map(|prompt| prompt.len()).sum());
        }
        let choices = prompts.len() * n;
        let parent = spec
            .parent
            .or_else(|| (choices > 1).then(|| app.scheduler.parent()));
        let mut generations = Vec::with_capacity(choices);
        for (prompt, max_new_tokens) in prompts.iter().zip(lengths) {
            let seeds = seed::seeds(checked.seed, n);
            for seed in seeds {
                let mut generation = checked.generation.clone();
                generation.sampling.seed = seed;
                generation.logprobs = logprobs_within(logprobs, prompt.len());
                let request = Request {
                    trace_id: spec.trace_id.clone(),
                    input_ids: prompt.to_vec(),
                    generation,
                    max_new_tokens,
                    priority: spec.priority.unwrap_or(0),
                    timeout_ms: spec.timeout_ms,
                    data_parallel_rank: checked.data_parallel_rank,
                    cache_salt: spec.cache_salt.clone(),
                    adapter_name: spec.adapter.clone(),
                };
                let reserve = reserves.next();
                let paid = reserve.iter().collect();
                let place = trace.map(InferenceTrace::context);
                let handle = app.scheduler.submit(request, parent, paid, place)?;
                let mut generation = Generation::new(handle, prompt, options)?;
                generation.reserve = reserve;
                generations.push(generation);
            }
        }
        tracing::debug!(
            request = spec.trace_id,
            prompts = prompts.len(),
            n,
            "submitted"
        );
        Ok(Self {
            prompts,
            n,
            generations,
        })
    }
}

/// Returns the request's own time limit, or else the server's; `None` = none.
fn timeout(spec: &GenerateSpec, server: &TimeoutConfig) -> Option<Duration> {
    let own = spec.timeout_ms.map(|ms| Duration::from_millis(ms.into()));
    own.or(server.request_s.map(Duration::from_secs))
}

/// Checks the lengths of lists and texts that a request may give once for all of its prompts. A
/// surface that copies them for each prompt asks before: a copy of one value is bounded then.
///
/// # Errors
/// 400 naming the field, its length and the limit.
pub fn check_lengths(config: &EngineConfig, spec: &GenerateSpec) -> ApiResult<()> {
    let (limits, fields) = (&config.server.limits.request, &spec.fields);
    check::stops(&spec.stops, &fields.name("stop"), limits)?;
    sampling::lengths(&spec.sampling, fields, limits)?;
    spec.cache_salt.as_deref().map_or(Ok(()), check::cache_salt)
}

/// Makes every check that needs no tokenizer.
fn check_spec(config: &EngineConfig, spec: &GenerateSpec) -> ApiResult<Checked> {
    let limits = &config.server.limits.request;
    let fields = &spec.fields;
    if spec.inputs.is_empty() {
        return Err(ApiError::invalid(
            fields.input,
            format!("Invalid '{}': it must not be empty.", fields.input),
        ));
    }
    count(fields.input, spec.inputs.len(), limits.prompts)?;
    let n = totals::choices(spec, limits)?;
    check_lengths(config, spec)?;
    let sampling = sampling::resolve(&spec.sampling, fields, config)?;
    let top = integer(
        &spec.logprobs.top_field,
        spec.logprobs.top,
        0,
        limits.top_logprobs as i64,
    )?;
    let logprobs = LogprobParams {
        output: spec.logprobs.output,
        top: u32::try_from(top).unwrap_or(0),
        prompt_start: spec.logprobs.prompt_start,
    };
    if !config.schedule.priorities && spec.priority.is_some_and(|priority| priority != 0) {
        return Err(ApiError::unsupported(
            fields.name("priority"),
            "This server was started without priorities; leave 'priority' out or start it with \
             `--enable-priority-scheduling`.",
        ));
    }
    let dp_size = config.parallel.dp_size;
    let dp_rank = |asked| check::dp_rank(asked, dp_size);
    Ok(Checked {
        data_parallel_rank: spec.data_parallel_rank.map(dp_rank).transpose()?,
        generation: GenerationParams {
            sampling,
            logprobs,
            max_draft_steps: speculative::max_draft_steps(spec.speculative, &config.speculation)?,
            // Compiled later, on another thread.
            constraint: None,
            // The scheduler knows its place.
            adapter: None,
        },
        n,
        seed: spec.sampling.seed,
    })
}

/// Removes a `prompt_start` beyond the prompt, as no prompt position is reported then.
fn logprobs_within(logprobs: LogprobParams, prompt_len: usize) -> LogprobParams {
    LogprobParams {
        prompt_start: logprobs
            .prompt_start
            .filter(|start| (*start as usize) < prompt_len),
        ..logprobs
    }
}
