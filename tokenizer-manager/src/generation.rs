//! Generation of one choice: turns the scheduler's tokens into text for the client.

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

/// Number of prompt tokens that precede the first output token when it is decoded. That
/// is enough for a character of four bytes and the space before a word.
const CONTEXT_TOKENS: usize = 8;
/// Grace period after a request's time limit. The scheduler ends a request at its
/// limit; after this time the scheduler is taken to hang.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(5);

/// Output of one step for a client.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// Text to show now.
    pub text: String,
    /// Tokens whose text began to show in this delta, in order.
    pub tokens: Vec<OutputToken>,
    /// Log-probabilities of the prompt. Present in one delta only, if requested.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Tokens generated so far.
    pub completion_tokens: u32,
    /// Version of the weights that computed the step; `None` = the first weights.
    pub weight_version: Option<Arc<str>>,
    /// DP rank that runs the request, if there are several.
    pub dp_rank: Option<u32>,
    /// Present in the last delta only.
    pub end: Option<End>,
}

impl Delta {
    /// Approximate bytes that the delta's log-probabilities take.
    pub(crate) fn logprob_bytes(&self) -> usize {
        let tokens = self.tokens.iter();
        let logprobs = tokens.filter_map(|token| token.logprob.as_ref());
        let logprobs = logprobs.chain(&self.prompt_logprobs);
        logprobs.map(TokenLogprob::bytes).sum()
    }
}

/// The end of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Reason of the end.
    pub reason: FinishReason,
    /// The token or stop string that matched, after [`FinishReason::Stop`].
    pub matched: Option<Matched>,
    /// Token counts.
    pub usage: Usage,
    /// Counts of speculative decoding; `None` if nothing was verified.
    pub speculation: Option<SpeculationUsage>,
}

/// The token or text that ended a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// An end or stop token.
    Token(u32),
    /// A stop string.
    Text(String),
}

/// A token that counts but is not shown, and its log-probability.
type HiddenToken = (u32, Option<TokenLogprob>);

/// Options that all choices of a request share.
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
    /// Takes the options from a request that passed its checks.
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
    /// Returns the span of the request's inference.
    pub(crate) fn trace(&self) -> Option<&InferenceTrace> {
        self.trace.as_deref()
    }
}

/// One choice. Dropping it before its end aborts the request at the scheduler.
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
    /// True if a token that is not in the text ended the choice. That token counts too.
    ended_by_token: bool,
    ended: bool,
    /// Memory reserved for log-probabilities that the choice may still return.
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

    /// Waits for the next step's output. A step with tokens always gives a delta. Its
    /// text may be empty while a character is incomplete or a stop string may follow.
    /// Must not be called after an error or an `end`.
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

    /// Returns all deltas; the stream ends after the last delta or the first error.
    /// Asking for the next delta frees the memory reserved for the previous delta's
    /// log-probabilities. A caller that keeps them must take the reserve first.
    pub fn into_stream(self) -> impl Stream<Item = ApiResult<Delta>> + Send {
        futures::stream::unfold((self, 0), |(mut generation, handed_over)| async move {
            // A caller that asks for more has passed on the previous delta.
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
    /// The scheduler's error, 408 beyond the request's time limit, or 429 if the choice
    /// has more log-probabilities than expected and memory is short.
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

    /// Ends the choice after a stop string: the scheduler need not go on.
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

    /// Removes the end or stop token that ended the output from the tokens. The token
    /// counts, but its text is never shown, whatever its kind.
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
