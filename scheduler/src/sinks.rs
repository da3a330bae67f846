//! Receivers of outputs (sinks): one per connected tokenizer-manager and per call of the public
//! service.

use std::collections::BTreeMap;

use lockstep_planner::RequestId;
use lockstep_ports::OutputSender;
use lockstep_proto::pb::lockstep::{
    self as pb, FiguresWanted, FrontendEvent, FrontendWelcome, TraceAborted, WeightsInUse,
};
use lockstep_types::request::Output;
use tokio::sync::mpsc;

/// Number of a connected frontend or of a call of the public service.
pub type SinkId = u32;

/// Bits of a [`RequestId`] that hold the sink-local number; the other bits hold the sink.
const REQUEST_BITS: u32 = 40;
/// The largest sink number; 0 is the scheduler's own sink.
const LAST_SINK: SinkId = (1 << (64 - REQUEST_BITS)) - 1;
/// Most log-probabilities of one event. With all their alternatives they fit an internal
/// message, unless a single prompt exceeds it.
const EVENT_LOGPROBS: usize = 64 * 1024;
/// Most events that wait for one sink. A step makes one event, so a frontend this far behind is
/// not reading. That frontend is cut off instead of filling memory.
pub const SINK_QUEUE: usize = 8192;

/// A receiver of outputs.
pub enum Sink {
    /// A tokenizer-manager: one event per step carries all its requests.
    Frontend(mpsc::Sender<FrontendEvent>),
    /// One call of the public service: (request, output). A caller that reads too slowly for
    /// its memory budget is cut off.
    Call(OutputSender<(u64, Output)>),
}

/// All sinks by number.
#[derive(Default)]
pub struct Sinks {
    sinks: BTreeMap<SinkId, OpenSink>,
    next: SinkId,
    /// Weights in use; `None` = those of the start.
    weights: Option<WeightsInUse>,
    /// True while steps run on every rank, as far as is known.
    healthy: bool,
}

struct OpenSink {
    sink: Sink,
    /// Events that the next flush sends to a frontend: mostly one.
    events: Vec<FrontendEvent>,
    /// Log-probabilities in the last event.
    logprobs: usize,
    /// Requests that have not ended, with the ids that their clients know.
    live: BTreeMap<u64, String>,
}

/// Joins a sink and its local request number; `None` if the number is too large.
pub fn request_id(sink: SinkId, request: u64) -> Option<RequestId> {
    (request < 1 << REQUEST_BITS).then(|| RequestId(u64::from(sink) << REQUEST_BITS | request))
}

/// Takes a [`RequestId`] apart again.
fn split(id: RequestId) -> (SinkId, u64) {
    let sink = u32::try_from(id.0 >> REQUEST_BITS).unwrap_or(SinkId::MAX);
    (sink, id.0 & ((1 << REQUEST_BITS) - 1))
}

impl Sinks {
    /// Adds a sink. A number is not reused before 2^24 others. By then no request of the closed
    /// sink is in flight any more.
    pub fn open(&mut self, sink: Sink, config_hash: &str) -> SinkId {
        let number = self.unused_number();
        if let Sink::Frontend(events) = &sink {
            let welcome = FrontendWelcome {
                config_hash: config_hash.to_owned(),
            };
            // A new channel has room; a frontend that left again is closed by its stream's end.
            let _ = events.try_send(FrontendEvent {
                welcome: Some(welcome),
                weights: self.weights.clone(),
                healthy: Some(self.healthy),
                ..FrontendEvent::default()
            });
        }
        let open = OpenSink {
            sink,
            events: Vec::new(),
            logprobs: 0,
            live: BTreeMap::new(),
        };
        self.sinks.insert(number, open);
        number
    }

    /// Returns the requests of all sinks that have not ended.
    pub fn live(&self) -> Vec<RequestId> {
        self.live_where(|_| true)
    }

    /// Returns the requests of all sinks that have not ended and that clients know by one of
    /// these ids.
    pub fn known_as(&self, trace_ids: &[String]) -> Vec<RequestId> {
        self.live_where(|trace_id| trace_ids.iter().any(|wanted| wanted == trace_id))
    }

    /// Returns the id that a request's client knows. `None` if the request has ended or is the
    /// scheduler's own.
    pub fn trace_id(&self, id: RequestId) -> Option<&str> {
        let (sink, request) = split(id);
        let trace_id = self.sinks.get(&sink)?.live.get(&request)?;
        Some(trace_id)
    }

    fn live_where(&self, wanted: impl Fn(&str) -> bool) -> Vec<RequestId> {
        let wanted = &wanted;
        let of_sink = |(sink, open): (&SinkId, &OpenSink)| {
            let requests = open.live.iter().filter(|(_, trace_id)| wanted(trace_id));
            requests
                .filter_map(|(request, _)| request_id(*sink, *request))
                .collect::<Vec<_>>()
        };
        self.sinks.iter().flat_map(of_sink).collect()
    }

    /// Tells a frontend the number of requests that its query ended, after all outputs pushed
    /// so far.
    pub fn trace_aborted(&mut self, sink: SinkId, query: u64, requests: usize) {
        // A frontend that left meanwhile needs no answer.
        if let Some(open) = self.sinks.get_mut(&sink) {
            let requests = u32::try_from(requests).unwrap_or(u32::MAX);
            open.begin(FrontendEvent {
                trace_aborted: Some(TraceAborted { query, requests }),
                ..FrontendEvent::default()
            });
        }
    }

    /// Asks every frontend for its figures. Returns the number of frontends.
    pub fn ask_figures(&mut self, query: u64, metrics: bool) -> usize {
        self.tell_frontends(|| FrontendEvent {
            figures_wanted: Some(FiguresWanted { query, metrics }),
            ..FrontendEvent::default()
        })
    }

    /// Returns the weights in use, unless they are those of the start.
    pub fn weights(&self) -> Option<&WeightsInUse> {
        self.weights.as_ref()
    }

    /// Tells every frontend that new weights are in use, between the outputs of the old ones
    /// and those of the new ones.
    pub fn broadcast_weights(&mut self, weights: WeightsInUse) {
        self.tell_frontends(|| FrontendEvent {
            weights: Some(weights.clone()),
            ..FrontendEvent::default()
        });
        self.weights = Some(weights);
    }

    /// Tells every frontend that steps run on every rank, or do not run any more.
    pub fn broadcast_health(&mut self, healthy: bool) {
        self.tell_frontends(|| FrontendEvent {
            healthy: Some(healthy),
            ..FrontendEvent::default()
        });
        self.healthy = healthy;
    }

    /// Sends every frontend an event, after all outputs pushed so far. Returns the number of
    /// frontends.
    fn tell_frontends(&mut self, event: impl Fn() -> FrontendEvent) -> usize {
        let frontends = self.sinks.values_mut();
        let frontends = frontends.filter(|open| matches!(open.sink, Sink::Frontend(_)));
        frontends.map(|open| open.begin(event())).count()
    }

    /// Returns the next number, in a circle, that no open sink has. A frontend stays open while
    /// calls come and go.
    fn unused_number(&mut self) -> SinkId {
        loop {
            self.next = self.next % LAST_SINK + 1;
            if !self.sinks.contains_key(&self.next) {
                return self.next;
            }
        }
    }

    /// Removes a sink. Returns its requests that have not ended.
    pub fn close(&mut self, sink: SinkId) -> Vec<RequestId> {
        let live = self
            .sinks
            .remove(&sink)
            .map(|open| open.live)
            .unwrap_or_default();
        live.into_keys()
            .filter_map(|request| request_id(sink, request))
            .collect()
    }

    /// Notes a request that was submitted. Returns false if the sink is gone or already has a
    /// request of this number.
    pub fn register(&mut self, sink: SinkId, request: u64, trace_id: &str) -> bool {
        let Some(open) = self.sinks.get_mut(&sink) else {
            return false;
        };
        if open.live.contains_key(&request) {
            return false;
        }
        open.live.insert(request, trace_id.to_owned());
        tracing::debug!(request = trace_id, sink, number = request, "submitted");
        true
    }

    /// Queues one output; [`Self::flush`] sends it.
    pub fn push(&mut self, id: RequestId, output: Output) {
        let (sink, request) = split(id);
        let Some(open) = self.sinks.get_mut(&sink) else {
            return;
        };
        if let Some(finish) = &output.finish {
            let trace_id = open.live.remove(&request).unwrap_or_default();
            tracing::debug!(
                request = trace_id,
                outcome = ?finish.outcome,
                usage = ?finish.usage,
                "ended"
            );
        }
        match &mut open.sink {
            Sink::Frontend(_) => open.add(lockstep_proto::output(output, request)),
            // A call that is given up is closed by the next flush.
            Sink::Call(call) => {
                let bytes = output.bytes();
                let _ = call.send((request, output), bytes);
            }
        }
    }

    /// Sends the queued outputs. Returns the sinks whose receivers are gone or do not read.
    pub fn flush(&mut self) -> Vec<SinkId> {
        let mut ended = Vec::new();
        for (id, open) in &mut self.sinks {
            let takes = match &open.sink {
                Sink::Frontend(events) => {
                    open.logprobs = 0;
                    let mut waiting = open.events.drain(..);
                    let is_full = |error| matches!(error, mpsc::error::TrySendError::Full(_));
                    let sent =
                        waiting.try_for_each(|event| events.try_send(event).map_err(is_full));
                    if sent == Err(true) {
                        tracing::warn!(
                            sink = id,
                            "a frontend does not read its events and is cut off"
                        );
                    }
                    sent.is_ok() && !events.is_closed()
                }
                // A call whose caller left while it was being opened, or does not read.
                Sink::Call(call) => !call.is_closed(),
            };
            if !takes {
                ended.push(*id);
            }
        }
        ended
    }
}

impl OpenSink {
    /// Adds an event. Later outputs join it or follow it.
    fn begin(&mut self, event: FrontendEvent) {
        self.logprobs = 0;
        self.events.push(event);
    }

    fn add(&mut self, output: pb::Output) {
        let logprobs = output.logprobs.len() + output.prompt_logprobs.len();
        self.logprobs += logprobs;
        match self.events.last_mut() {
            Some(event) if self.logprobs <= EVENT_LOGPROBS => event.outputs.push(output),
            _ => {
                self.logprobs = logprobs;
                self.events.push(FrontendEvent {
                    outputs: vec![output],
                    ..FrontendEvent::default()
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_ports::{Budget, Prepaid};

    use super::*;

    #[test]
    fn ids_split_into_what_they_were_made_of() {
        for (sink, request) in [(0, 0), (1, 7), ((1 << 24) - 1, (1 << 40) - 1)] {
            let id = request_id(sink, request).expect("in range");
            assert_eq!(split(id), (sink, request));
        }
        assert!(request_id(1, 1 << 40).is_none());
    }

    #[test]
    fn a_frontend_that_does_not_read_is_reported() {
        let (events, _unread) = mpsc::channel(2);
        let mut sinks = Sinks::default();
        let sink = sinks.open(Sink::Frontend(events), "hash");
        let id = request_id(sink, 1).expect("in range");
        assert!(sinks.register(sink, 1, "a"));
        assert!(!sinks.register(sink, 1, "b"), "a number lives once");
        sinks.push(id, Output::default());
        assert!(sinks.flush().is_empty(), "welcome and one event fit");
        sinks.push(id, Output::default());
        assert_eq!(sinks.flush(), [sink]);
        assert_eq!(sinks.close(sink), [id]);
    }

    #[test]
    fn a_call_that_does_not_read_is_reported_beyond_the_budget() {
        let budget = Budget::new(64 << 10);
        let (call, mut unread) = lockstep_ports::outputs(&budget, Prepaid::default());
        let mut sinks = Sinks::default();
        let sink = sinks.open(Sink::Call(call), "hash");
        let id = request_id(sink, 1).expect("in range");
        assert!(sinks.register(sink, 1, "a"));
        let mut took = 0;
        while sinks.flush().is_empty() {
            assert!(took < 1000, "nothing is given up");
            sinks.push(id, Output::default());
            took += 1;
        }
        assert_eq!(sinks.close(sink), [id]);
        assert_eq!(budget.taken(), 64 << 10);
        let read = std::iter::from_fn(|| unread.try_recv());
        assert_eq!(read.take_while(Result::is_ok).count(), took - 1);
        drop(unread);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn numbers_go_round_without_taking_one_in_use_or_the_schedulers_own() {
        let mut sinks = Sinks::default();
        let (events, _receiver) = mpsc::channel(1);
        let frontend = sinks.open(Sink::Frontend(events), "hash");
        sinks.next = LAST_SINK - 1;
        let budget = Budget::new(0);
        let call = || lockstep_ports::outputs(&budget, Prepaid::default()).0;
        let mut open = || sinks.open(Sink::Call(call()), "hash");
        assert_eq!([open(), open()], [LAST_SINK, frontend + 1]);
    }

    #[test]
    fn sinks_whose_receivers_left_are_reported_although_nothing_is_sent() {
        let mut sinks = Sinks::default();
        let (events, left) = mpsc::channel(2);
        let frontend = sinks.open(Sink::Frontend(events), "hash");
        let (call, gone) = lockstep_ports::outputs(&Budget::new(0), Prepaid::default());
        let call = sinks.open(Sink::Call(call), "hash");
        assert!(sinks.flush().is_empty());
        drop((left, gone));
        assert_eq!(sinks.flush(), [frontend, call]);
    }

    #[test]
    fn many_log_probabilities_travel_in_several_events() {
        let (events, mut receiver) = mpsc::channel(8);
        let mut sinks = Sinks::default();
        let sink = sinks.open(Sink::Frontend(events), "hash");
        for (request, logprobs) in [(1, EVENT_LOGPROBS), (2, 1), (3, 1)] {
            let id = request_id(sink, request).expect("in range");
            let output = Output {
                prompt_logprobs: vec![Default::default(); logprobs],
                ..Output::default()
            };
            sinks.push(id, output);
        }
        assert!(sinks.flush().is_empty());
        let mut lengths = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            lengths.push(event.outputs.len());
        }
        assert_eq!(lengths, [0, 1, 2], "the welcome, then two events");
    }
}
