//! The response stream of one Generate call.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt as _, stream};
use lockstep_ports::{OutputReceiver, Reservation};
use lockstep_proto::pb::sglang::grpc::scheduler::{
    GenerateComplete, GenerateResponse, GenerateStreamChunk, InputLogProbs, InputTokenLogProb,
    OutputLogProbs, TopLogProbs, generate_complete::MatchedStop, generate_response,
};
use lockstep_types::{
    request::{Finish, FinishReason, Output},
    sampling::{LogprobParams, TokenLogprob},
};
use tonic::Status;

use super::{calls::Registration, convert::Call};

/// Stream of a call's responses.
pub type Answers = Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

/// Returns the answer to a call that was aborted before its choices were submitted: that of choices
/// without a token.
pub fn aborted(mut registration: Registration, call: &Call) -> Answers {
    registration.finished();
    let request_id = registration.request_id().to_owned();
    let LogprobParams {
        output,
        prompt_start,
        ..
    } = call.logprobs;
    let prompt_tokens = call.prompt_tokens();
    let complete = move |index: usize| GenerateComplete {
        output_logprobs: output.then(OutputLogProbs::default),
        input_logprobs: prompt_start.map(|_| InputLogProbs::default()),
        finish_reason: "abort".to_owned(),
        prompt_tokens,
        index: count(index),
        ..Default::default()
    };
    let message = move |index| {
        Ok(GenerateResponse {
            request_id: request_id.clone(),
            response: Some(generate_response::Response::Complete(complete(index))),
        })
    };
    stream::iter(0..call.requests.len()).map(message).boxed()
}

/// Outputs of one choice so far.
#[derive(Default)]
struct Choice {
    token_ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    prompt_logprobs: Vec<TokenLogprob>,
    /// Number of tokens sent in chunks.
    sent: usize,
    /// Memory reserved for its log-probabilities.
    reserve: Option<Reservation>,
}

impl Choice {
    /// Adds an output, if there is room for it. Returns the choice's end, if it has ended.
    fn push(&mut self, output: Output) -> Result<Option<Finish>, Status> {
        if let Some(reserve) = &mut self.reserve {
            let logprobs = output.logprobs.iter().chain(&output.prompt_logprobs);
            reserve.came(logprobs.map(TokenLogprob::bytes).sum())?;
        }
        self.token_ids.extend(output.token_ids);
        self.logprobs.extend(output.logprobs);
        self.prompt_logprobs.extend(output.prompt_logprobs);
        Ok(output.finish)
    }
}

/// Outputs of all choices as wire messages: chunks with every token if asked for, then one
/// `complete` per choice. Dropping the stream early aborts the choices.
pub struct Responses {
    request_id: String,
    outputs: OutputReceiver<(u64, Output)>,
    choices: Vec<Choice>,
    prompt_tokens: u32,
    stream: bool,
    interval: usize,
    logprobs: LogprobParams,
    open: usize,
    /// The `complete` behind a choice's last chunk.
    next: Option<GenerateResponse>,
    /// Reserves of choices that have ended, until the message after their last one is asked
    /// for.
    ended: Vec<Reservation>,
    registration: Registration,
}

impl Responses {
    /// Makes a stream over a call's choices, each with its reserve.
    pub fn new(
        registration: Registration,
        outputs: OutputReceiver<(u64, Output)>,
        call: &Call,
        reserves: Vec<Reservation>,
    ) -> Self {
        let mut reserves = reserves.into_iter();
        let choice = |_| Choice {
            reserve: reserves.next(),
            ..Choice::default()
        };
        Self {
            request_id: registration.request_id().to_owned(),
            outputs,
            choices: call.requests.iter().map(choice).collect(),
            prompt_tokens: call.prompt_tokens(),
            stream: call.stream,
            interval: call.interval,
            logprobs: call.logprobs,
            open: call.requests.len(),
            next: None,
            ended: Vec::new(),
            registration,
        }
    }

    /// Takes one output. Returns `None` if it makes no message.
    fn take(&mut self, index: u64, output: Output) -> Option<Result<GenerateResponse, Status>> {
        let choice = usize::try_from(index)
            .ok()
            .and_then(|at| self.choices.get_mut(at))?;
        let finish = match choice.push(output) {
            Ok(finish) => finish,
            Err(status) => return Some(Err(status)),
        };
        let (unsent, interval) = (choice.token_ids.len() - choice.sent, self.interval);
        let Some(finish) = finish else {
            let due = self.stream && unsent >= interval;
            return due.then(|| Ok(self.chunk(index)));
        };
        self.open -= 1;
        // Gateways that stream take tokens only from chunks.
        let last = (self.stream && unsent > 0).then(|| self.chunk(index));
        let complete = match self.complete(index, finish) {
            Ok(complete) => self.message(generate_response::Response::Complete(complete)),
            Err(status) => return Some(Err(status)),
        };
        Some(Ok(match last {
            Some(last) => {
                self.next = Some(complete);
                last
            }
            None => complete,
        }))
    }

    fn message(&self, response: generate_response::Response) -> GenerateResponse {
        GenerateResponse {
            request_id: self.request_id.clone(),
            response: Some(response),
        }
    }

    /// Makes a chunk of the tokens since the last one.
    fn chunk(&mut self, index: u64) -> GenerateResponse {
        let logprobs = self.logprobs;
        let choice = &mut self.choices[usize::try_from(index).unwrap_or(0)];
        let from = std::mem::replace(&mut choice.sent, choice.token_ids.len());
        let first = from == 0;
        let chunk = GenerateStreamChunk {
            token_ids: choice.token_ids[from..].to_vec(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: count(choice.token_ids.len()),
            output_logprobs: logprobs
                .output
                .then(|| output_logprobs(&choice.logprobs[from.min(choice.logprobs.len())..])),
            input_logprobs: (first && logprobs.prompt_start.is_some())
                .then(|| input_logprobs(&choice.prompt_logprobs)),
            index: count(usize::try_from(index).unwrap_or(0)),
            ..Default::default()
        };
        self.message(generate_response::Response::Chunk(chunk))
    }

    fn complete(&mut self, index: u64, finish: Finish) -> Result<GenerateComplete, Status> {
        let reason = finish.outcome.map_err(lockstep_proto::status)?;
        let speculation = finish.speculation.unwrap_or_default();
        let choice = &mut self.choices[usize::try_from(index).unwrap_or(0)];
        let (output, prompt_start) = (self.logprobs.output, self.logprobs.prompt_start);
        // Outputs of a choice that has ended are not kept.
        let logprobs = std::mem::take(&mut choice.logprobs);
        let prompt_logprobs = std::mem::take(&mut choice.prompt_logprobs);
        self.ended.extend(choice.reserve.take());
        Ok(GenerateComplete {
            output_logprobs: output.then(|| output_logprobs(&logprobs)),
            input_logprobs: prompt_start.map(|_| input_logprobs(&prompt_logprobs)),
            output_ids: std::mem::take(&mut choice.token_ids),
            finish_reason: match reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
                FinishReason::Abort => "abort",
            }
            .to_owned(),
            prompt_tokens: finish.usage.prompt_tokens,
            completion_tokens: finish.usage.completion_tokens,
            cached_tokens: finish.usage.cached_tokens,
            matched_stop: finish.matched_token.map(MatchedStop::MatchedTokenId),
            index: count(usize::try_from(index).unwrap_or(0)),
            spec_accepted_tokens: speculation.accepted_tokens(),
            spec_draft_tokens: speculation.draft_tokens,
            ..Default::default()
        })
    }
}

impl Stream for Responses {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(next) = this.next.take() {
            return Poll::Ready(Some(Ok(next)));
        }
        // The transport owns the last messages of these choices now.
        this.ended.drain(..).for_each(Reservation::end);
        while this.open > 0 {
            match this.outputs.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    this.open = 0;
                    return Poll::Ready(Some(Err(Status::unavailable("the engine stopped"))));
                }
                Poll::Ready(Some(Err(given_up))) => {
                    this.open = 0;
                    return Poll::Ready(Some(Err(given_up.into())));
                }
                Poll::Ready(Some(Ok((index, output)))) => {
                    let Some(response) = this.take(index, output) else {
                        continue;
                    };
                    if response.is_err() {
                        // One choice's failure ends the call; the drop aborts the other
                        // choices.
                        this.open = 0;
                    }
                    return Poll::Ready(Some(response));
                }
            }
        }
        this.registration.finished();
        Poll::Ready(None)
    }
}

fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn top(logprobs: &[TokenLogprob]) -> Vec<TopLogProbs> {
    let one = |logprob: &TokenLogprob| {
        let (token_ids, values) = logprob.top.iter().copied().unzip();
        TopLogProbs { values, token_ids }
    };
    logprobs.iter().map(one).collect()
}

fn output_logprobs(logprobs: &[TokenLogprob]) -> OutputLogProbs {
    OutputLogProbs {
        token_logprobs: logprobs
            .iter()
            .map(|one| one.logprob.unwrap_or_default())
            .collect(),
        token_ids: logprobs.iter().map(|one| one.token_id).collect(),
        top_logprobs: top(logprobs),
        token_ids_logprobs: Vec::new(),
    }
}

fn input_logprobs(logprobs: &[TokenLogprob]) -> InputLogProbs {
    InputLogProbs {
        token_logprobs: logprobs
            .iter()
            .map(|one| InputTokenLogProb { value: one.logprob })
            .collect(),
        token_ids: logprobs.iter().map(|one| one.token_id).collect(),
        top_logprobs: top(logprobs),
    }
}
