//! Requests on their way into the planner, and the engine's health as clients see it.

use std::time::Instant;

use lockstep_types::{
    TraceContext,
    request::{ErrorKind, Finish, Output, Request, RequestError, Usage},
    sampling::SamplingParams,
};
use tokio::sync::{oneshot, watch};

use super::{Engine, Phase};
use crate::{
    admissible::admissible,
    sinks::{SinkId, request_id},
};

/// The sink number of the scheduler's own health steps; real ones begin at 1.
const PROBE_SINK: SinkId = 0;

impl Engine {
    /// Aborts the requests that clients know by one of these ids, or all requests, of any
    /// frontend. Their clients hear of the ends before the asker hears the number.
    pub(super) fn abort_trace(&mut self, sink: SinkId, query: u64, trace_ids: Option<&[String]>) {
        // Requests that have ended already are not aborted.
        self.deliver();
        let wanted = trace_ids.map_or_else(|| self.sinks.live(), |ids| self.sinks.known_as(ids));
        for id in &wanted {
            self.planner.abort(*id);
        }
        self.deliver();
        self.sinks.trace_aborted(sink, query, wanted.len());
    }

    /// Hands a request to the planner and begins its span. If the request is refused, the
    /// refusal is its only output.
    pub(super) fn submit(
        &mut self,
        sink: SinkId,
        request: u64,
        (parent, trace): (Option<u64>, Option<&TraceContext>),
        body: Result<Box<Request>, RequestError>,
        reply: Option<oneshot::Sender<Result<(), RequestError>>>,
    ) {
        let Some(id) = request_id(sink, request) else {
            tracing::warn!(sink, request, "a request number beyond 2^40 is ignored");
            return;
        };
        let trace_id = body.as_ref().map_or("", |request| &request.trace_id);
        if !self.sinks.register(sink, request, trace_id) {
            tracing::warn!(sink, request, "a request number that is in use is ignored");
            return;
        }
        if let Some(trace) = trace {
            self.traces.submitted(id, trace, body.as_deref().ok());
        }
        let prompt_tokens = body.as_ref().map_or(0, |request| request.input_ids.len());
        let parent = parent.and_then(|parent| request_id(sink, parent));
        let accepted = body
            .and_then(|request| self.admit(*request))
            .and_then(|request| {
                let now = self.clock.now();
                self.planner.submit_choice(now, id, parent, request)
            });
        if let Some(reply) = reply {
            // The asker may have left.
            let _ = reply.send(accepted.clone().map(drop));
        }
        if let Err(error) = accepted {
            let usage = Usage {
                prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
                ..Usage::default()
            };
            let finish = Finish {
                outcome: Err(error),
                matched_token: None,
                usage,
                speculation: None,
            };
            let refusal = Output {
                finish: Some(finish),
                ..Output::default()
            };
            self.traces.output(id, &refusal);
            self.sinks.push(id, refusal);
        }
    }

    /// Checks that a request may be planned now, whatever its frontend has checked.
    fn admit(&mut self, request: Request) -> Result<Request, RequestError> {
        match self.phase {
            Phase::Serving => {}
            Phase::Draining => return Err(unavailable("the server is shutting down".into(), None)),
            Phase::Starting | Phase::LoadingAdapters | Phase::WarmingUp => {
                return Err(unavailable(
                    "the server is starting".into(),
                    self.served_in(),
                ));
            }
        }
        let mut request = admissible(request, &self.config.model).map_err(|error| {
            let mut invalid = RequestError::new(ErrorKind::Invalid, error.to_string());
            invalid.param = Some(error.field.to_owned());
            invalid
        })?;
        if let Some(name) = request.adapter_name.take() {
            request.generation.adapter = Some(self.adapters.resolve(&name)?);
        }
        Ok(request)
    }

    /// Answers when a step has run on every rank, and at once while the engine starts. While
    /// new weights are read no step can run, and the answer is yes: a node that is ended as
    /// unhealthy would only have to read them again. The reading has a time limit of its own.
    pub(super) fn ask_health(
        &mut self,
        force_step: bool,
        reply: oneshot::Sender<Result<(), String>>,
    ) {
        if matches!(self.phase, Phase::Starting | Phase::LoadingAdapters) {
            // The asker learns it at once, and can send its requests elsewhere meanwhile.
            let _ = reply.send(Err("it is starting".to_owned()));
        } else if self.reloads() && !force_step {
            // The asker may have given up.
            let _ = reply.send(Ok(()));
        } else if self.health.ask(reply, force_step, self.group.sent()) && self.planner.is_idle() {
            self.probe();
        }
    }

    /// Notes that no step ran in time after `asked`, unless new weights are being read.
    pub(super) fn health_late(&mut self, asked: Instant) {
        if !self.reloads() {
            let news = self.health.late(asked);
            self.tell_health(news);
        }
    }

    /// Tells all frontends if the engine is healthy, when that has changed.
    pub(super) fn tell_health(&mut self, news: Option<bool>) {
        if let Some(healthy) = news {
            self.sinks.broadcast_health(healthy);
        }
    }

    /// Returns the seconds until requests are served again, as far as the launcher knows.
    pub(super) fn served_in(&self) -> Option<u32> {
        self.link.outlook().seconds()
    }

    /// Returns the engine's health, as far as it is known without another step.
    pub fn health(&self) -> watch::Receiver<bool> {
        self.health.known()
    }

    /// Submits a prompt of one token for one token: a real forward step on every rank.
    pub(super) fn probe(&mut self) {
        self.probes += 1;
        let Some(id) = request_id(PROBE_SINK, self.probes) else {
            return;
        };
        let sampling = SamplingParams {
            ignore_eos: true,
            ..SamplingParams::greedy()
        };
        let request = Request {
            trace_id: format!("health-{}", self.probes),
            generation: sampling.into(),
            ..Request::new(vec![0], 1)
        };
        if let Err(error) = self.planner.submit_probe(self.clock.now(), id, request) {
            // A refusal means that the engine is busy, and then steps run anyway.
            tracing::debug!(%error, "no health step was added");
        }
    }
}

/// Makes the error of an engine that can't take or keep a request now. `served_in_s` is the
/// time after which it can, if that is known.
pub(super) fn unavailable(message: String, served_in_s: Option<u32>) -> RequestError {
    RequestError {
        retry_after_s: served_in_s.or(Some(1)),
        ..RequestError::new(ErrorKind::Unavailable, message)
    }
}
