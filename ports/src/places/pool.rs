//! A limited number of places, with the connections that wait and their waiting times.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::{sync::oneshot, time::Instant};

use crate::{limits::Wait, outgoing::Outgoing, peer::Peer, report::Closed};

#[derive(Debug)]
pub(super) struct Pool {
    limit: usize,
    open: BTreeMap<u64, Open>,
    /// Connections without a request, the longest waiting first.
    waiting: BTreeSet<(Instant, u64)>,
}

/// Answers of a connection that were not taken in time.
pub(super) struct Stalled {
    pub(super) connection: u64,
    pub(super) answers: Vec<Arc<Outgoing>>,
    /// True if no other request is on the connection.
    pub(super) all: bool,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) peer: Peer,
    pub(super) end: oneshot::Sender<Closed>,
    requests: BTreeMap<u64, Request>,
    /// Number of requests for which the connection keeps its place.
    working: usize,
    wait: Wait,
    /// Time since which the connection waits; `None` while requests work.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Request {
    /// State of the answer.
    outgoing: Arc<Outgoing>,
    works: bool,
}

impl Open {
    /// Removes a request, and returns true if it was the last one that works.
    fn take_off(&mut self, request: u64) -> Option<(Arc<Outgoing>, bool)> {
        let Request { outgoing, works } = self.requests.remove(&request)?;
        self.working -= usize::from(works);
        Some((outgoing, works && self.working == 0))
    }

    /// Records that the connection waits for another request from now on.
    fn idle(&mut self) -> Instant {
        let now = Instant::now();
        (self.wait, self.since) = (Wait::Request, Some(now));
        now
    }
}

impl Pool {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: BTreeMap::new(),
            waiting: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= self.limit
    }

    pub(super) fn insert(&mut self, id: u64, peer: Peer, end: oneshot::Sender<Closed>) {
        let now = Instant::now();
        let open = Open {
            peer,
            end,
            requests: BTreeMap::new(),
            working: 0,
            wait: Wait::FirstBytes,
            since: Some(now),
        };
        self.open.insert(id, open);
        self.waiting.insert((now, id));
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        if let Some(since) = open.since {
            self.waiting.remove(&(since, id));
        }
        Some(open)
    }

    /// Records that a connection waits for something else from now on, unless requests
    /// came.
    pub(super) fn waits(&mut self, id: u64, wait: Wait) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        if let Some(since) = open.since {
            let now = Instant::now();
            self.waiting.remove(&(since, id));
            self.waiting.insert((now, id));
            (open.wait, open.since) = (wait, Some(now));
        }
    }

    pub(super) fn enter(&mut self, id: u64, request: u64, outgoing: Arc<Outgoing>, works: bool) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        open.requests.insert(request, Request { outgoing, works });
        if works {
            open.working += 1;
            if let Some(since) = open.since.take() {
                self.waiting.remove(&(since, id));
            }
        }
    }

    /// Removes a request; returns true if it was the last one that works.
    pub(super) fn leave(&mut self, id: u64, request: u64) -> bool {
        let Some(open) = self.open.get_mut(&id) else {
            return false;
        };
        let Some((_, true)) = open.take_off(request) else {
            return false;
        };
        self.waiting.insert((open.idle(), id));
        true
    }

    /// Removes the requests whose answers' last parts were handed over before `time`
    /// and are not taken.
    pub(super) fn stalled_since(&mut self, time: u64) -> Vec<Stalled> {
        let mut stalled = Vec::new();
        for (id, open) in &mut self.open {
            let requests = open.requests.iter();
            let late: Vec<_> = requests
                .filter(|(_, request)| request.outgoing.is_untaken_since(time))
                .map(|(request, _)| *request)
                .collect();
            if late.is_empty() {
                continue;
            }
            let mut answers = Vec::new();
            for late in late {
                let Some((outgoing, last)) = open.take_off(late) else {
                    continue;
                };
                answers.push(outgoing);
                if last {
                    self.waiting.insert((open.idle(), *id));
                }
            }
            stalled.push(Stalled {
                connection: *id,
                answers,
                all: open.requests.is_empty(),
            });
        }
        stalled
    }

    pub(super) fn longest_waiting(&self, of: impl Fn(Peer) -> bool) -> Option<u64> {
        let mut ids = self.waiting.iter().map(|(_, id)| *id);
        ids.find(|id| self.open.get(id).is_some_and(|open| of(open.peer)))
    }

    pub(super) fn waiting_too_long(
        &self,
        late: impl Fn(Wait, Instant) -> bool,
    ) -> Vec<(u64, Wait)> {
        let waits = self
            .waiting
            .iter()
            .filter_map(|(since, id)| Some((*id, *since, self.open.get(id)?.wait)));
        waits
            .filter(|(_, since, wait)| late(*wait, *since))
            .map(|(id, _, wait)| (id, wait))
            .collect()
    }
}
