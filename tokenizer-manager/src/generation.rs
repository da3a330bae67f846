//! One choice being generated: tokens from the scheduler to what a client sees.

mod pending;
mod timing;

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::Stream;
use lockstep_ports::Reserve;
use lockstep_text::{OutputOptions, OutputText, StopMatch};
use lockstep_types::{
    request::{ErrorKind, Finish, FinishReason, Output, RequestError, SpeculationUsage, Usage},
    sampling::{SamplingParams, TokenLogprob},
};
pub use pending::OutputToken;
use pending::Pending;
use timing::Timing;
use tokio::time::{Instant, Sleep};

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    gate::Ticket,
    request_trace::{ChoiceTrace, InferenceTrace},
    scheduler_client::RequestHandle,
    submission::GenerateSpec,
};

/// Prompt tokens that the first output token is decoded after: enough for a
/// character of four bytes and the space before a word.
const CONTEXT_TOKENS: usize = 8;
/// The scheduler ends a request at its time limit; this much later it is taken to hang.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(5);

/// What a client gets of one step.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// Text to show now.
    pub text: String,
    /// Tokens whose text began to show, in order.
    pub tokens: Vec<OutputToken>,
    /// The prompt's log-probabilities, once, when asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Tokens generated so far.
    pub completion_tokens: u32,
    /// The version of the weights that computed it; `None` = the first ones.
    pub weight_version: Option<Arc<str>>,
    /// The DP rank that it ran in, where there are several.
    pub dp_rank: Option<u32>,
    /// With the last delta.
    pub end: Option<End>,
}

impl Delta {
    /// Bytes that its log-probabilities take, about.
    pub(crate) fn logprob_bytes(&self) -> usize {
        let tokens = self.tokens.iter();
        let logprobs = tokens.filter_map(|token| token.logprob.as_ref());
        let logprobs = logprobs.chain(&self.prompt_logprobs);
        logprobs.map(TokenLogprob::bytes).sum()
    }
}

/// How a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Why it ended.
    pub reason: FinishReason,
    /// What matched, after [`FinishReason::Stop`].
    pub matched: Option<Matched>,
    /// Token counts.
    pub usage: Usage,
    /// Counts of speculative decoding; `None` where nothing was verified.
    pub speculation: Option<SpeculationUsage>,
}

/// What ended a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// An end or stop token.
    Token(u32),
    /// A stop string.
    Text(String),
}

/// A token that counts without showing, and its log-probability.
type HiddenToken = (u32, Option<TokenLogprob>);

/// What all choices of a request have in common.
#[derive(Debug, Clone)]
pub struct GenerationOptions {
    stops: Arc<[String]>,
    include_stop: bool,
    skip_special_tokens: bool,
    min_tokens: usize,
    timeout_ms: Option<u32>,
    arrived: Instant,
    ticket: Arc<Ticket>,
    trace: Option<Arc<InferenceTrace>>,
}

impl GenerationOptions {
    /// From a request that passed its checks.
    pub fn new(
        spec: &GenerateSpec,
        sampling: &SamplingParams,
        ticket: Arc<Ticket>,
        arrived: Instant,
        trace: Option<Arc<InferenceTrace>>,
    ) -> Self {
        Self {
            stops: spec.stops.clone().into(),
            include_stop: spec.include_stop,
            skip_special_tokens: spec.skip_special_tokens,
            min_tokens: sampling.min_new_tokens as usize,
            timeout_ms: spec.timeout_ms,
            arrived,
            ticket,
            trace,
        }
    }
}

impl GenerationOptions {
    /// The span of what its request asks of the model.
    pub(crate) fn trace(&self) -> Option<&InferenceTrace> {
        self.trace.as_deref()
    }
}

/// One choice. Dropping it before its end aborts it at the scheduler.
#[derive(Debug)]
pub struct Generation {
    handle: RequestHandle,
    text: OutputText,
    pending: Pending,
    prompt: Arc<[u32]>,
    stops: Arc<[String]>,
    deadline: Option<Pin<Box<Sleep>>>,
    timing: Timing,
    include_stop: bool,
    /// One token more than the text has: the one that ended it.
    ended_by_token: bool,
    ended: bool,
    /// Room for the log-probabilities that the choice may still have.
    pub(crate) reserve: Option<Reserve>,
    _ticket: Arc<Ticket>,
}

impl Generation {
    /// Takes over a submitted request.
    ///
    /// # Errors
    /// 400 for stop strings that cannot be matched.
    pub fn new(
        app: &App,
        handle: RequestHandle,
        prompt: Arc<[u32]>,
        options: &GenerationOptions,
    ) -> ApiResult<Self> {
        let from = prompt.len().saturating_sub(CONTEXT_TOKENS);
        let text = OutputText::new(
            app.text.tokenizer.clone(),
            OutputOptions {
                skip_special_tokens: options.skip_special_tokens,
                stops: &options.stops,
                include_stop_str_in_output: options.include_stop,
                min_tokens: options.min_tokens,
                prompt: &prompt[from..],
            },
        )
        .map_err(|error| ApiError::invalid("stop", error.to_string()))?;
        let own = options
            .timeout_ms
            .map(|ms| Duration::from_millis(ms.into()));
        let limit = own.or(app.config.timeouts.request_s.map(Duration::from_secs));
        Ok(Self {
            handle,
            text,
            pending: Pending::default(),
            prompt,
            stops: Arc::clone(&options.stops),
            deadline: limit
                .map(|limit| Box::pin(tokio::time::sleep(limit.saturating_add(TIMEOUT_MARGIN)))),
            timing: Timing::new(
                app.metrics.latencies(),
                options.arrived,
                options.trace.clone().map(ChoiceTrace::new),
            ),
            include_stop: options.include_stop,
            ended_by_token: false,
            ended: false,
            reserve: None,
            _ticket: Arc::clone(&options.ticket),
        })
    }

    /// What the next step brought: a token counts, and is a delta, also where its
    /// text waits for more of a character or for the end of what may be a stop
    /// string. Not to be called after an error or an `end`.
    ///
    /// # Errors
    /// The scheduler's error, or 408 beyond the request's time limit.
    pub async fn next(&mut self) -> ApiResult<Delta> {
        let delta = self.step().await;
        delta.inspect_err(|error| self.timing.failed(error))
    }

    async fn step(&mut self) -> ApiResult<Delta> {
        loop {
            let output = self.receive().await?;
            let is_step = !output.token_ids.is_empty();
            let delta = self.advance(output).await?;
            if is_step || delta.end.is_some() || !delta.prompt_logprobs.is_empty() {
                return Ok(delta);
            }
        }
    }

    /// All deltas; ends after the last one or the first error. The room of a delta's
    /// log-probabilities is given back when the next one is asked for: who keeps them
    /// has taken the reserve before.
    pub fn into_stream(self) -> impl Stream<Item = ApiResult<Delta>> + Send {
        futures::stream::unfold((self, 0), |(mut generation, handed_over)| async move {
            // Who asks for more has passed on what came before.
            if let Some(reserve) = &mut generation.reserve {
                reserve.went(handed_over);
            }
            if generation.ended {
                return None;
            }
            let delta = generation.next().await;
            let handed_over = delta.as_ref().map_or(0, Delta::logprob_bytes);
            generation.ended = delta.as_ref().map_or(true, |delta| delta.end.is_some());
            Some((delta, (generation, handed_over)))
        })
    }

    /// Waits for the end and joins all deltas.
    ///
    /// # Errors
    /// The scheduler's error, 408 beyond the request's time limit, or 429 where
    /// there is no memory for more log-probabilities than were expected.
    pub async fn complete(mut self) -> ApiResult<(Delta, End)> {
        let mut whole = Delta::default();
        loop {
            let delta = self.next().await?;
            if let Some(reserve) = &mut self.reserve {
                reserve.came(delta.logprob_bytes())?;
            }
            whole.text.push_str(&delta.text);
            whole.tokens.extend(delta.tokens);
            whole.prompt_logprobs.extend(delta.prompt_logprobs);
            whole.weight_version = delta.weight_version;
            whole.dp_rank = delta.dp_rank;
            if let Some(end) = delta.end {
                return Ok((whole, end));
            }
        }
    }

    async fn receive(&mut self) -> ApiResult<Output> {
        let Some(deadline) = &mut self.deadline else {
            return Ok(self.handle.next().await);
        };
        tokio::select! {
            biased;
            output = self.handle.next() => Ok(output),
            () = deadline.as_mut() => Err(RequestError::new(
                ErrorKind::Timeout,
                "The request took longer than its time limit.",
            )
            .into()),
        }
    }

    async fn advance(&mut self, output: Output) -> ApiResult<Delta> {
        let Output {
            mut token_ids,
            mut logprobs,
            prompt_logprobs,
            finish,
            dp_rank,
        } = output;
        self.timing.output(token_ids.len());
        let hidden = self.hidden(finish.as_ref(), &mut token_ids, &mut logprobs);
        let mut delta = Delta {
            prompt_logprobs,
            dp_rank,
            ..Delta::default()
        };
        let began = self.timing.detokenizing();
        let stop = self.push(&token_ids, logprobs, &mut delta.text);
        self.timing.detokenized(began);
        self.pending.showed(&delta.text);
        if let Some(stop) = stop {
            delta.end = Some(self.stopped(stop, finish).await);
        } else if let Some(finish) = finish {
            delta.end = Some(self.finished(finish, hidden, &mut delta.text)?);
        }
        delta.tokens = match (&delta.end, stop) {
            (Some(_), None) => self.pending.rest(),
            _ => self.pending.take(),
        };
        delta.completion_tokens = self.completion_tokens();
        delta.weight_version = self.handle.weight_version();
        if let Some(end) = &delta.end {
            self.timing.end(end);
        }
        Ok(delta)
    }

    /// Adds tokens up to the one that completes a stop string.
    fn push(
        &mut self,
        token_ids: &[u32],
        logprobs: Vec<TokenLogprob>,
        shown: &mut String,
    ) -> Option<StopMatch> {
        let mut logprobs = logprobs.into_iter();
        for id in token_ids {
            let token = self.text.push(*id);
            shown.push_str(token.text);
            self.pending.push(*id, token.text_offset, logprobs.next());
            if token.stop.is_some() {
                return token.stop;
            }
        }
        None
    }

    /// A stop string ended the text: the scheduler need not go on.
    async fn stopped(&mut self, stop: StopMatch, finish: Option<Finish>) -> End {
        let finish = match finish {
            Some(finish) => Some(finish),
            None => self.handle.stop().await,
        };
        let cached = finish.as_ref().map_or(0, |end| end.usage.cached_tokens);
        End {
            reason: FinishReason::Stop,
            matched: self.stops.get(stop.index).cloned().map(Matched::Text),
            usage: self.usage(cached),
            speculation: finish.and_then(|finish| finish.speculation),
        }
    }

    /// Takes the end or stop token that ended the output off its tokens: it
    /// counts, but its text is not shown, whatever kind of token it is.
    fn hidden(
        &self,
        finish: Option<&Finish>,
        token_ids: &mut Vec<u32>,
        logprobs: &mut Vec<TokenLogprob>,
    ) -> Option<HiddenToken> {
        let matched = finish?.matched_token?;
        if self.include_stop || token_ids.last() != Some(&matched) {
            return None;
        }
        let has_logprob = logprobs.len() == token_ids.len();
        token_ids.pop();
        Some((matched, logprobs.pop().filter(|_| has_logprob)))
    }

    fn finished(
        &mut self,
        finish: Finish,
        hidden: Option<HiddenToken>,
        shown: &mut String,
    ) -> ApiResult<End> {
        let reason = finish.outcome?;
        let rest = self.text.finish();
        shown.push_str(rest);
        self.pending.showed(rest);
        if let Some((id, logprob)) = hidden {
            self.pending.push_last(id, logprob);
            self.ended_by_token = true;
        }
        Ok(End {
            reason,
            matched: finish.matched_token.map(Matched::Token),
            usage: self.usage(finish.usage.cached_tokens),
            speculation: finish.speculation,
        })
    }

    fn usage(&self, cached_tokens: u32) -> Usage {
        Usage {
            prompt_tokens: u32::try_from(self.prompt.len()).unwrap_or(u32::MAX),
            completion_tokens: self.completion_tokens(),
            cached_tokens,
        }
    }

    fn completion_tokens(&self) -> u32 {
        let tokens = self.text.tokens() + usize::from(self.ended_by_token);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}
