//! Generation of one choice: the scheduler's tokens become events for the client.

mod event;
mod events;
mod merge;
mod parts;
mod pending;
mod timing;

use std::{pin::Pin, sync::Arc, time::Duration};

pub use event::{CallBegin, CallDelta, End, Event, Matched, TextDelta};
use events::FilterChain;
use futures::Stream;
use lockstep_ports::Reservation;
use lockstep_text::{AnswerOptions, OutputOptions, OutputText, Tokenizer};
use lockstep_types::{
    request::{ErrorKind, Output, RequestError},
    sampling::TokenLogprob,
};
pub use merge::{Deltas, first, merge};
use parts::Parts;
pub use pending::OutputToken;
use timing::Timing;
use tokio::time::{Instant, Sleep};

use crate::{
    error::{ApiError, ApiResult},
    gate::Ticket,
    metrics::Latencies,
    request_trace::{ChoiceTrace, InferenceTrace},
    scheduler_client::RequestHandle,
};

/// Number of prompt tokens that precede the first output token when it is decoded. That
/// is enough for a character of four bytes and the space before a word.
const CONTEXT_TOKENS: usize = 8;
/// Grace period after a request's time limit. The scheduler ends a request at its
/// limit; after this time the scheduler is taken to hang.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(5);

/// Output of one step for a client.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Events in order: the step's text, and the end after the last step.
    pub events: Vec<Event>,
    /// Log-probabilities of the prompt. Present in one delta only, if requested.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Tokens generated so far.
    pub completion_tokens: u32,
    /// Version of the weights that computed the step; `None` = the first weights.
    pub weight_version: Option<Arc<str>>,
    /// DP rank that runs the request, if there are several.
    pub dp_rank: Option<u32>,
}

impl Delta {
    /// Returns the end, which only the last delta has.
    pub fn end(&self) -> Option<&End> {
        match self.events.last()? {
            Event::End(end) => Some(end),
            Event::Text(_) | Event::Reasoning(_) | Event::ToolCall(_) => None,
        }
    }

    /// Adds the next delta of the choice. Events of one kind that follow each other become one.
    fn append(&mut self, next: Self) {
        for event in next.events {
            match (self.events.last_mut(), event) {
                // Only a step without any output has such an event.
                (_, Event::Text(text)) if text.is_empty() => {}
                (Some(Event::Text(text)), Event::Text(more))
                | (Some(Event::Reasoning(text)), Event::Reasoning(more)) => text.append(more),
                (Some(Event::ToolCall(call)), Event::ToolCall(more)) if more.begin.is_none() => {
                    call.append(more);
                }
                (_, event) => self.events.push(event),
            }
        }
        self.prompt_logprobs.extend(next.prompt_logprobs);
        self.completion_tokens = next.completion_tokens;
        self.weight_version = next.weight_version;
        self.dp_rank = next.dp_rank;
    }

    /// Approximate bytes that the delta's log-probabilities take.
    pub(crate) fn logprob_bytes(&self) -> usize {
        let tokens = self.events.iter().flat_map(Event::tokens);
        let logprobs = tokens.filter_map(|token| token.logprob.as_ref());
        let logprobs = logprobs.chain(&self.prompt_logprobs);
        logprobs.map(TokenLogprob::bytes).sum()
    }
}

/// Options that all choices of a request share.
#[derive(Debug, Clone)]
pub struct GenerationOptions {
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// Metrics in which the choices record their latencies.
    pub latencies: Latencies,
    /// Strings that end the output.
    pub stops: Arc<[String]>,
    /// True if the output includes the stop string that matched.
    pub include_stop: bool,
    /// True if special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Parts of the answer that are told apart.
    pub answer: AnswerOptions,
    /// Number of output tokens before which no stop string ends the output.
    pub min_tokens: usize,
    /// Time limit; `None` = none.
    pub timeout: Option<Duration>,
    /// Time at which the request arrived.
    pub arrived: Instant,
    /// Proof of the request's admission.
    pub ticket: Arc<Ticket>,
    /// Span of the request's inference; `None` if it is not traced.
    pub trace: Option<Arc<InferenceTrace>>,
}

/// One choice. Dropping it before its end aborts the request at the scheduler.
#[derive(Debug)]
pub struct Generation {
    handle: RequestHandle,
    filters: FilterChain,
    deadline: Option<Pin<Box<Sleep>>>,
    timing: Timing,
    ended: bool,
    /// Memory reserved for log-probabilities that the choice may still return.
    pub(crate) reserve: Option<Reservation>,
    _ticket: Arc<Ticket>,
}

impl Generation {
    /// Takes over a submitted request.
    ///
    /// # Errors
    /// 400 for stop strings that cannot be matched.
    pub fn new(
        handle: RequestHandle,
        prompt: &[u32],
        options: &GenerationOptions,
    ) -> ApiResult<Self> {
        let from = prompt.len().saturating_sub(CONTEXT_TOKENS);
        let tokenizer = &options.tokenizer;
        let parts = Parts::new(tokenizer, &options.answer);
        let shown = parts.as_ref().map(|parts| parts.special_marks(tokenizer));
        let text = OutputText::new(
            tokenizer.clone(),
            OutputOptions {
                skip_special_tokens: options.skip_special_tokens,
                shown_special_tokens: shown.as_deref().unwrap_or_default(),
                stops: &options.stops,
                include_stop_str_in_output: options.include_stop,
                min_tokens: options.min_tokens,
                prompt: &prompt[from..],
            },
        )
        .map_err(|error| ApiError::invalid("stop", error.to_string()))?;
        let (stops, include_stop) = (Arc::clone(&options.stops), options.include_stop);
        let limit = options.timeout;
        Ok(Self {
            handle,
            filters: FilterChain::new(text, parts, prompt.len(), (stops, include_stop)),
            deadline: limit
                .map(|limit| Box::pin(tokio::time::sleep(limit.saturating_add(TIMEOUT_MARGIN)))),
            timing: Timing::new(
                options.latencies.clone(),
                options.arrived,
                options.trace.clone().map(ChoiceTrace::new),
            ),
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
            if is_step || delta.end().is_some() || !delta.prompt_logprobs.is_empty() {
                return Ok(delta);
            }
        }
    }

    /// Returns all deltas; the stream ends after the last delta or the first error, which is 429 if
    /// more log-probabilities wait for their text than expected and memory is short.
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
            let delta = delta.and_then(|delta| {
                generation.hold(handed_over)?;
                Ok(delta)
            });
            generation.ended = delta.as_ref().map_or(true, |delta| delta.end().is_some());
            Some((delta, (generation, handed_over)))
        })
    }

    /// Waits for the end and joins all deltas.
    ///
    /// # Errors
    /// The scheduler's error, 408 beyond the request's time limit, or 429 if the choice
    /// has more log-probabilities than expected and memory is short.
    pub async fn complete(mut self) -> ApiResult<Delta> {
        let mut whole = Delta::default();
        loop {
            let delta = self.next().await?;
            if let Some(reserve) = &mut self.reserve {
                reserve.came(delta.logprob_bytes())?;
            }
            self.hold(0)?;
            whole.append(delta);
            if whole.end().is_some() {
                return Ok(whole);
            }
        }
    }

    /// Takes memory for log-probabilities that are handed over, and for those of tokens whose text
    /// is held back, as far as they exceed the reserve.
    fn hold(&mut self, handed_over: usize) -> ApiResult<()> {
        let bytes = handed_over + self.filters.pending_bytes();
        match &mut self.reserve {
            Some(reserve) => Ok(reserve.holds(bytes)?),
            None => Ok(()),
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
            token_ids,
            logprobs,
            prompt_logprobs,
            finish,
            dp_rank,
        } = output;
        self.timing.output(token_ids.len());
        let began = self.timing.detokenizing();
        let stopped = self.filters.push(token_ids, logprobs, finish.as_ref());
        self.timing.detokenized(began);
        let finish = match (stopped, finish) {
            // After a stop string the scheduler need not go on.
            (true, None) => self.handle.stop().await,
            (_, finish) => finish,
        };
        let delta = Delta {
            events: self.filters.events(finish)?,
            prompt_logprobs,
            completion_tokens: self.filters.completion_tokens(),
            weight_version: self.handle.weight_version(),
            dp_rank,
        };
        if let Some(end) = delta.end() {
            self.timing.end(end);
        }
        Ok(delta)
    }
}
