//! Spans of sampled requests in the engine. They are made around the planner, from its plans
//! and outputs, and from the times that ranks report with their results anyway.

mod ranks;

use std::{collections::BTreeMap, time::SystemTime};

use lockstep_planner::{Planner, RequestId};
use lockstep_process::RoleContext;
use lockstep_traces::{Span, SpanCounts, SpanKind, TraceError, Traces, names};
use lockstep_types::{
    TraceContext,
    request::{Finish, Output, Request},
    step::RankResult,
};
use ranks::{Part, Ranks};

const QUEUE: &str = "queue";
const PREFILL: &str = "prefill";
const DECODE: &str = "decode";

/// Spans of all requests that are traced. If nothing is traced, nothing is done.
pub struct RequestTraces {
    traces: Option<Traces>,
    ranks: Ranks,
    live: BTreeMap<RequestId, Traced>,
}

/// A request that has not ended: its span, and the span of its present part.
struct Traced {
    request: Span,
    part: Part,
    dp_rank: u32,
    /// Tokens that came in this part.
    tokens: usize,
}

impl RequestTraces {
    /// Makes the recorder, without requests.
    ///
    /// # Errors
    /// [`TraceError`] if spans of the workers can't be exported.
    pub fn new(ctx: &RoleContext) -> Result<Self, TraceError> {
        Ok(Self {
            ranks: Ranks::new(ctx.traces.as_ref(), &ctx.engine.parallel)?,
            traces: ctx.traces.clone(),
            live: BTreeMap::new(),
        })
    }

    /// Returns the counts of spans; `None` if nothing is traced.
    pub fn counts(&self) -> Option<SpanCounts> {
        self.traces.as_ref().map(Traces::counts)
    }

    /// Begins the span of a request, which is traced.
    pub fn submitted(&mut self, id: RequestId, place: &TraceContext, request: Option<&Request>) {
        let traces = self.traces.as_ref();
        let span = traces.and_then(|own| own.begin("request", SpanKind::Internal, Some(place)));
        let Some(mut span) = span else { return };
        if let Some(request) = request {
            span.set(names::REQUEST_ID, request.trace_id.clone());
            span.set(names::PROMPT_TOKENS, count(request.input_ids.len()));
        }
        let part = self.ranks.part(&span, QUEUE, SystemTime::now(), 0);
        let traced = Traced {
            request: span,
            part,
            dp_rank: 0,
            tokens: 0,
        };
        self.live.insert(id, traced);
    }

    /// Notes that a step is planned. A waiting request may have begun, and a running one may
    /// wait again.
    pub fn planned(&mut self, step: u64, planner: &Planner) {
        for (id, traced) in &mut self.live {
            let Some(now) = planner.live_request(*id) else {
                continue;
            };
            match (traced.part.name, now.dp_rank) {
                (QUEUE, Some(dp_rank)) => {
                    traced.turn(PREFILL, step, &mut self.ranks);
                    traced.dp_rank = dp_rank;
                    let cached = i64::from(now.cached_tokens.unwrap_or(0));
                    traced.part.span.set(names::CACHED_TOKENS, cached);
                }
                (PREFILL | DECODE, None) => {
                    traced.turn(QUEUE, 0, &mut self.ranks);
                    traced.part.span.set(names::RETRACTED, true);
                }
                _ => {}
            }
        }
    }

    /// Notes a rank's answer to a step.
    pub fn answered(&mut self, rank: usize, result: &RankResult) {
        let live = self.live.values_mut().map(|traced| &mut traced.part);
        self.ranks.answered(rank, result, live);
    }

    /// Notes that all ranks have answered this step.
    pub fn settle(&mut self, step: u64) {
        self.ranks.settle(step);
    }

    /// Notes a request's output from the planner.
    pub fn output(&mut self, id: RequestId, output: &Output) {
        if self.live.is_empty() {
            return;
        }
        let Some(traced) = self.live.get_mut(&id) else {
            return;
        };
        traced.tokens += output.token_ids.len();
        let goes_on = output.finish.is_none();
        if traced.part.name == PREFILL && traced.tokens > 0 && goes_on {
            let next = self.ranks.last_step() + 1;
            traced.turn(DECODE, next, &mut self.ranks);
        }
        if let Some(finish) = &output.finish
            && let Some(traced) = self.live.remove(&id)
        {
            traced.end(finish, &mut self.ranks);
        }
    }
}

impl Traced {
    /// Ends the present part, and begins the part `name` now and with this step.
    fn turn(&mut self, name: &'static str, step: u64, ranks: &mut Ranks) {
        let now = SystemTime::now();
        let next = ranks.part(&self.request, name, now, step);
        let mut done = std::mem::replace(&mut self.part, next);
        let tokens = std::mem::take(&mut self.tokens);
        if done.name != QUEUE {
            done.span.set(names::TOKENS, count(tokens));
        }
        ranks.close(done, now, self.dp_rank);
    }

    fn end(mut self, finish: &Finish, ranks: &mut Ranks) {
        let now = SystemTime::now();
        let (span, part) = (&mut self.request, &mut self.part);
        if part.name != QUEUE {
            part.span.set(names::TOKENS, count(self.tokens));
            if let Some(speculation) = &finish.speculation {
                let steps = i64::from(speculation.verify_steps);
                part.span.set(names::VERIFY_STEPS, steps);
                let drafted = i64::from(speculation.draft_tokens);
                part.span.set(names::DRAFT_TOKENS, drafted);
                let accepted = i64::from(speculation.accepted_tokens());
                part.span.set(names::ACCEPTED_TOKENS, accepted);
            }
        }
        let usage = finish.usage;
        span.set(names::TOKENS, i64::from(usage.completion_tokens));
        span.set(names::CACHED_TOKENS, i64::from(usage.cached_tokens));
        span.set(names::DP_RANK, i64::from(self.dp_rank));
        match &finish.outcome {
            Ok(reason) => span.set(names::FINISH_REASON, names::reason(*reason)),
            Err(error) => span.fail(error.message.clone()),
        }
        ranks.close(self.part, now, self.dp_rank);
        self.request.end_at(now);
    }
}

fn count(tokens: usize) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}
