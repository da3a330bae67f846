//! Where outputs go: one sink per connected tokenizer-manager and per call of
//! the public service.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_planner::RequestId;
use lockstep_proto::{
    pb::lockstep::{FrontendEvent, FrontendWelcome},
    request::Output,
};
use tokio::sync::mpsc;

use crate::command::SinkId;

/// Bits of a [`RequestId`] that hold the sink-local number; the rest is the sink.
const REQUEST_BITS: u32 = 40;
/// Events that may wait for one sink. A step makes one, so a frontend this far
/// behind is not reading: it is cut off instead of filling memory.
pub const SINK_QUEUE: usize = 8192;

/// A receiver of outputs.
pub enum Sink {
    /// A tokenizer-manager: one event per step carries all its requests.
    Frontend(mpsc::Sender<FrontendEvent>),
    /// One call of the public service: (request, output). Unbounded, but a call
    /// can get no more than its requests' tokens.
    Call(mpsc::UnboundedSender<(u64, Output)>),
}

/// All sinks by number.
#[derive(Default)]
pub struct Sinks {
    sinks: BTreeMap<SinkId, Entry>,
    next: SinkId,
}

struct Entry {
    sink: Sink,
    /// What the next flush sends to a frontend.
    event: FrontendEvent,
    /// Requests that have not ended.
    live: BTreeSet<u64>,
}

/// Joins a sink and its local request number; `None` if the number is too large.
pub fn request_id(sink: SinkId, request: u64) -> Option<RequestId> {
    (request < 1 << REQUEST_BITS).then(|| RequestId(u64::from(sink) << REQUEST_BITS | request))
}

/// Takes a [`RequestId`] apart again.
pub fn split(id: RequestId) -> (SinkId, u64) {
    let sink = u32::try_from(id.0 >> REQUEST_BITS).unwrap_or(SinkId::MAX);
    (sink, id.0 & ((1 << REQUEST_BITS) - 1))
}

impl Sinks {
    /// Adds a sink. Numbers are not reused before 2^24 others, far longer than
    /// any request of a closed sink is still in flight.
    pub fn open(&mut self, sink: Sink, config_hash: &str) -> SinkId {
        self.next = (self.next + 1) % (1 << (64 - REQUEST_BITS));
        if let Sink::Frontend(events) = &sink {
            let welcome = FrontendWelcome {
                config_hash: config_hash.to_owned(),
            };
            // A new channel has room; a frontend that left again is closed by its stream's end.
            let _ = events.try_send(FrontendEvent {
                outputs: Vec::new(),
                welcome: Some(welcome),
            });
        }
        let entry = Entry {
            sink,
            event: FrontendEvent::default(),
            live: BTreeSet::new(),
        };
        self.sinks.insert(self.next, entry);
        self.next
    }

    /// Forgets a sink; returns its requests that have not ended.
    pub fn close(&mut self, sink: SinkId) -> Vec<RequestId> {
        let live = self
            .sinks
            .remove(&sink)
            .map(|entry| entry.live)
            .unwrap_or_default();
        live.into_iter()
            .filter_map(|request| request_id(sink, request))
            .collect()
    }

    /// Notes that a request was handed in; false if the sink is gone or has a
    /// request of this number already.
    pub fn begin(&mut self, sink: SinkId, request: u64) -> bool {
        self.sinks
            .get_mut(&sink)
            .is_some_and(|entry| entry.live.insert(request))
    }

    /// Takes one output on; it leaves with [`Self::flush`].
    pub fn push(&mut self, id: RequestId, output: Output) {
        let (sink, request) = split(id);
        let Some(entry) = self.sinks.get_mut(&sink) else {
            return;
        };
        if output.finish.is_some() {
            entry.live.remove(&request);
        }
        match &entry.sink {
            Sink::Frontend(_) => entry.event.outputs.push(output.into_wire(request)),
            // Fails only when the caller has left; its close is on the way.
            Sink::Call(call) => {
                let _ = call.send((request, output));
            }
        }
    }

    /// Sends what was pushed, one event per frontend; returns the sinks that
    /// do not take theirs.
    pub fn flush(&mut self) -> Vec<SinkId> {
        let mut stuck = Vec::new();
        for (id, entry) in &mut self.sinks {
            if let Sink::Frontend(events) = &entry.sink
                && !entry.event.outputs.is_empty()
                && events.try_send(std::mem::take(&mut entry.event)).is_err()
            {
                stuck.push(*id);
            }
        }
        stuck
    }
}

#[cfg(test)]
mod tests {
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
        assert!(sinks.begin(sink, 1));
        assert!(!sinks.begin(sink, 1), "a number lives once");
        sinks.push(id, Output::default());
        assert!(sinks.flush().is_empty(), "welcome and one event fit");
        sinks.push(id, Output::default());
        assert_eq!(sinks.flush(), [sink]);
        assert_eq!(sinks.close(sink), [id]);
    }
}
