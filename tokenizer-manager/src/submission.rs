//! From what a client asked to requests at the scheduler; one path for every surface.

mod check;
mod context;
mod draft;
mod sampling;
mod seed;
mod speculative;
mod tokenize;

use std::sync::Arc;

pub use check::{count, integer, non_negative};
pub use draft::{Draft, Fields, Input, LogprobDraft, MaxTokens, SamplingDraft, SpeculativeDraft};
use lockstep_types::{
    request::Request,
    sampling::{LogprobParams, SamplingParams},
};
use tokio::time::Instant;

use crate::{
    engine::Engine,
    error::{ApiError, ApiResult},
    generation::{Generation, GenerationOptions},
};

/// The running choices of one client request.
#[derive(Debug)]
pub struct Submission {
    /// The tokens of each prompt.
    pub prompts: Vec<Arc<[u32]>>,
    /// Choices per prompt.
    pub n: usize,
    /// All choices: those of the first prompt, then of the second, …
    pub generations: Vec<Generation>,
}

/// A request that passed every check but is not submitted yet.
#[derive(Debug)]
struct Checked {
    sampling: SamplingParams,
    logprobs: LogprobParams,
    n: usize,
    seed: Option<u64>,
    max_draft_steps: Option<u32>,
}

impl Submission {
    /// Checks, tokenizes and submits. Nothing is queued unless all of it is
    /// right; dropping the future or the result aborts what was submitted.
    ///
    /// # Errors
    /// Everything a request can be refused for.
    pub async fn new(engine: &Engine, draft: Draft) -> ApiResult<Self> {
        let arrived = Instant::now();
        let ticket = engine.gate.enter()?;
        let Checked {
            sampling,
            logprobs,
            n,
            seed,
            max_draft_steps,
        } = check_draft(engine, &draft)?;
        let prompts = tokenize::tokenize(engine, &draft).await?;
        check::tokens(&draft, &prompts, n, &engine.config.schedule)?;
        let lengths = prompts
            .iter()
            .map(|prompt| context::max_new_tokens(engine, &draft, prompt.len()))
            .collect::<ApiResult<Vec<u32>>>()?;
        let ticket = Arc::new(ticket);
        let options = GenerationOptions::new(&draft, &sampling, Arc::clone(&ticket), arrived)?;
        let mut generations = Vec::with_capacity(prompts.len() * n);
        for (prompt, max_new_tokens) in prompts.iter().zip(lengths) {
            let seeds = seed::seeds(seed, n);
            for seed in seeds {
                let request = Request {
                    trace_id: draft.trace_id.clone(),
                    input_ids: prompt.to_vec(),
                    sampling: SamplingParams {
                        seed,
                        ..sampling.clone()
                    },
                    logprobs: logprobs_within(logprobs, prompt.len()),
                    max_new_tokens,
                    priority: draft.priority.unwrap_or(0),
                    timeout_ms: draft.timeout_ms,
                    max_draft_steps,
                };
                let handle = engine.scheduler.submit(request)?;
                generations.push(Generation::new(engine, handle, prompt.clone(), &options)?);
            }
        }
        tracing::debug!(
            request = draft.trace_id,
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

/// Every check that needs no tokenizer.
fn check_draft(engine: &Engine, draft: &Draft) -> ApiResult<Checked> {
    let limits = &engine.config.server.limits.request;
    let fields = &draft.fields;
    if draft.inputs.is_empty() {
        return Err(ApiError::invalid(
            fields.input,
            format!("Invalid '{}': it must not be empty.", fields.input),
        ));
    }
    count(fields.input, draft.inputs.len(), limits.prompts)?;
    let n = check::choices(draft, limits)?;
    check::stops(&draft.stops, &fields.name("stop"), limits)?;
    let sampling = sampling::resolve(&draft.sampling, fields, engine)?;
    let top = integer(
        &draft.logprobs.top_field,
        draft.logprobs.top,
        0,
        limits.top_logprobs as i64,
    )?;
    let logprobs = LogprobParams {
        output: draft.logprobs.output,
        top: u32::try_from(top).unwrap_or(0),
        prompt_start: draft.logprobs.prompt_start,
    };
    if !engine.config.schedule.priorities && draft.priority.is_some_and(|priority| priority != 0) {
        return Err(ApiError::unsupported(
            fields.name("priority"),
            "This server was started without priorities; leave 'priority' out or start it with \
             `--enable-priority-scheduling`.",
        ));
    }
    Ok(Checked {
        sampling,
        logprobs,
        n,
        seed: draft.sampling.seed,
        max_draft_steps: speculative::max_draft_steps(
            draft.speculative,
            &engine.config.speculation,
        )?,
    })
}

/// A start beyond the prompt means no prompt position.
fn logprobs_within(logprobs: LogprobParams, prompt_len: usize) -> LogprobParams {
    LogprobParams {
        prompt_start: logprobs
            .prompt_start
            .filter(|start| (*start as usize) < prompt_len),
        ..logprobs
    }
}
