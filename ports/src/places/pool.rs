//! A number of places, and who waits in them for how long.

use std::collections::{BTreeMap, BTreeSet};

use tokio::{sync::oneshot, time::Instant};

use super::Peer;
use crate::report::Closed;

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

#[derive(Debug)]
pub(super) struct Open {
    pub(super) peer: Peer,
    pub(super) end: oneshot::Sender<Closed>,
    requests: usize,
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
            requests: 0,
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

    pub(super) fn enter(&mut self, id: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            open.requests += 1;
            if let Some(since) = open.since.take() {
                self.waiting.remove(&(since, id));
            }
        }
    }

    /// Whether that was the last request on it.
    pub(super) fn leave(&mut self, id: u64) -> bool {
        let Some(open) = self.open.get_mut(&id) else {
            return false;
        };
        open.requests -= 1;
        if open.requests > 0 {
            return false;
        }
        let now = Instant::now();
        (open.wait, open.since) = (Wait::Request, Some(now));
        self.waiting.insert((now, id));
        true
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
