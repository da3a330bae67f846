//! A number of places, and who waits in them for how long.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::{sync::oneshot, time::Instant};

use super::Peer;
use crate::{outgoing::Outgoing, report::Closed};

/// What a connection without a request has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// To send its first bytes.
    FirstBytes,
    /// To end the head that it has begun.
    Head,
    /// To begin a request, if it wants.
    Request,
}

impl Wait {
    /// The reason for which one ends that has waited for too long.
    pub(crate) fn outlasted(self) -> Closed {
        match self {
            Self::FirstBytes => Closed::Silent,
            Self::Head => Closed::SlowHead,
            Self::Request => Closed::Idle,
        }
    }
}

#[derive(Debug)]
pub(super) struct Pool {
    limit: usize,
    open: BTreeMap<u64, Open>,
    /// Those without a request, the one that waits longest first.
    waiting: BTreeSet<(Instant, u64)>,
}

/// Answers of a connection that were not taken in time.
pub(super) struct Stalled {
    pub(super) connection: u64,
    pub(super) answers: Vec<Arc<Outgoing>>,
    /// Whether they were all that was on it.
    pub(super) all: bool,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) peer: Peer,
    pub(super) end: oneshot::Sender<Closed>,
    /// Each with what is to be taken of its answer.
    requests: BTreeMap<u64, Arc<Outgoing>>,
    wait: Wait,
    /// Since when it waits for that; `None` while requests are on it.
    since: Option<Instant>,
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

    /// A connection waits for something else from now on, unless requests came.
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

    pub(super) fn enter(&mut self, id: u64, request: u64, outgoing: Arc<Outgoing>) {
        if let Some(open) = self.open.get_mut(&id) {
            open.requests.insert(request, outgoing);
            if let Some(since) = open.since.take() {
                self.waiting.remove(&(since, id));
            }
        }
    }

    /// Whether that was the last request on it.
    pub(super) fn leave(&mut self, id: u64, request: u64) -> bool {
        let Some(open) = self.open.get_mut(&id) else {
            return false;
        };
        let left = open.requests.remove(&request).is_some();
        if !left || !open.requests.is_empty() {
            return false;
        }
        let now = Instant::now();
        (open.wait, open.since) = (Wait::Request, Some(now));
        self.waiting.insert((now, id));
        true
    }

    /// Takes the requests off whose answers' last parts were handed over before
    /// `time` and are not taken.
    pub(super) fn stalled_since(&mut self, time: u64) -> Vec<Stalled> {
        let mut stalled = Vec::new();
        for (id, open) in &mut self.open {
            let requests = open.requests.iter();
            let late: Vec<_> = requests
                .filter(|(_, outgoing)| outgoing.is_untaken_since(time))
                .map(|(request, _)| *request)
                .collect();
            if late.is_empty() {
                continue;
            }
            let answers = late.iter().filter_map(|late| open.requests.remove(late));
            stalled.push(Stalled {
                connection: *id,
                answers: answers.collect(),
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
