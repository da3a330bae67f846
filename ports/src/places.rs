//! Places for connections, limited per port and per peer. A new connection may take the
//! place of the one that waits longest.

mod pool;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    limits::{PortLimits, Wait},
    outgoing::Outgoing,
    peer::{self, Peer},
    report::{Closed, Counters, PortReport},
};
use pool::Pool;

/// Places for connections that find no other. Only health is answered there.
pub(crate) const PROBES: usize = 32;

/// The limit that keeps a connection from a regular place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Port,
    Peer,
}

/// The places of one port.
#[derive(Debug)]
pub(crate) struct Places {
    limits: PortLimits,
    state: Mutex<State>,
    counters: Counters,
    /// Start of the port's clock.
    began: Instant,
}

#[derive(Debug)]
struct State {
    regular: Pool,
    probes: Pool,
    /// Number of regular places of each peer.
    peers: BTreeMap<Peer, usize>,
    /// Number of the next connection or request.
    next: u64,
}

/// Place of a connection. The place is free again when this value is dropped, or when
/// the place is taken away. The receiver from [`Places::admit`] then learns it.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    /// Reason why the place is a probe's; `None` for a regular place.
    pub(crate) full: Option<Full>,
    /// True if no request is on the connection, and its next bytes begin one.
    expects_head: AtomicBool,
    /// Number of requests on the connection.
    requests: AtomicUsize,
}

impl Places {
    pub(crate) fn new(limits: PortLimits) -> Arc<Self> {
        let state = State {
            regular: Pool::new(limits.connections),
            probes: Pool::new(PROBES),
            peers: BTreeMap::new(),
            next: 0,
        };
        Arc::new(Self {
            limits,
            state: Mutex::new(state),
            counters: Counters::default(),
            began: Instant::now(),
        })
    }

    /// Returns a place for a new connection, and a receiver that learns when the place
    /// is taken away. `None` if even probes have no place.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> Option<(Arc<Place>, oneshot::Receiver<Closed>)> {
        self.counters.accepted();
        let peer = peer::of(address);
        let (end, ended) = oneshot::channel();
        let mut state = self.lock();
        let id = state.number();
        let full = self.is_full(&mut state, peer);
        if full.is_some() {
            if state.probes.is_full() && !self.evict_from(&mut state, true, |_| true) {
                self.counters.closed(Closed::Refused);
                return None;
            }
            state.probes.insert(id, peer, end);
        } else {
            *state.peers.entry(peer).or_default() += 1;
            state.regular.insert(id, peer, end);
        }
        let place = Place {
            places: self.clone(),
            id,
            full,
            expects_head: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
        };
        Some((Arc::new(place), ended))
    }

    /// Returns the limit that leaves no regular place. First it evicts a waiting
    /// connection if it can.
    fn is_full(&self, state: &mut State, peer: Peer) -> Option<Full> {
        let own = state.peers.get(&peer).copied().unwrap_or_default();
        let port = state.regular.is_full();
        if own >= self.limits.per_peer && !self.evict_from(state, false, |other| other == peer) {
            return Some(if port { Full::Port } else { Full::Peer });
        }
        let room = !state.regular.is_full() || self.evict_from(state, false, |_| true);
        (!room).then_some(Full::Port)
    }

    /// Closes the connection that waits longest; returns true if there was one.
    pub(crate) fn evict(&self) -> bool {
        self.evict_from(&mut self.lock(), false, |_| true)
    }

    fn evict_from(&self, state: &mut State, probes: bool, of: impl Fn(Peer) -> bool) -> bool {
        let pool = if probes {
            &mut state.probes
        } else {
            &mut state.regular
        };
        let Some(id) = pool.longest_waiting(of) else {
            return false;
        };
        self.close(state, id, Closed::Evicted);
        true
    }

    /// Closes connections that have waited too long at the time `now`, and drops
    /// answers that were not taken in time.
    pub(crate) fn sweep(&self, now: Instant) {
        self.end_waits(now);
        let stalled = self.end_stalled(now);
        // Not under the lock: dropping an answer may need the lock.
        for answer in stalled {
            answer.drop_content();
        }
    }

    fn end_waits(&self, now: Instant) {
        let mut state = self.lock();
        let late = |wait: Wait, since: Instant| now.duration_since(since) >= self.limits.of(wait);
        let mut ended = state.regular.waiting_too_long(late);
        ended.extend(state.probes.waiting_too_long(late));
        for (id, wait) in ended {
            self.close(&mut state, id, wait.outlasted());
        }
    }

    fn end_stalled(&self, now: Instant) -> Vec<Arc<Outgoing>> {
        let Some(before) = now.checked_sub(self.limits.send) else {
            return Vec::new();
        };
        let before = self.clock(before);
        let mut state = self.lock();
        let mut stalled = state.regular.stalled_since(before);
        stalled.extend(state.probes.stalled_since(before));
        let mut answers = Vec::new();
        for stalled in stalled {
            self.counters.closed(Closed::Stalled);
            if stalled.all
                && let Some(end) = state.remove(stalled.connection)
            {
                // The send may fail, as in `close`.
                let _ = end.send(Closed::Stalled);
            }
            answers.extend(stalled.answers);
        }
        answers
    }

    /// Returns milliseconds since the port's clock began.
    fn clock(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    fn close(&self, state: &mut State, id: u64, reason: Closed) {
        if let Some(end) = state.remove(id) {
            self.counters.closed(reason);
            // The send fails if the connection has just ended by itself.
            let _ = end.send(reason);
        }
    }

    /// Counts an end that happened elsewhere.
    pub(crate) fn count(&self, reason: Closed) {
        self.counters.closed(reason);
    }

    pub(crate) fn report(&self, port: &'static str) -> PortReport {
        let state = self.lock();
        self.counters
            .report(port, state.regular.len() + state.probes.len())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    fn remove(&mut self, id: u64) -> Option<oneshot::Sender<Closed>> {
        if let Some(open) = self.regular.remove(id) {
            if let Some(count) = self.peers.get_mut(&open.peer) {
                *count -= 1;
                if *count == 0 {
                    self.peers.remove(&open.peer);
                }
            }
            return Some(open.end);
        }
        self.probes.remove(id).map(|open| open.end)
    }

    fn pool(&mut self, full: Option<Full>) -> &mut Pool {
        if full.is_some() {
            &mut self.probes
        } else {
            &mut self.regular
        }
    }
}

impl Place {
    /// Records that the first bytes have come. Over HTTP/1.1 a head has begun; an
    /// HTTP/2 connection may open streams.
    pub(crate) fn detected(&self, http2: bool) {
        let wait = if http2 { Wait::Request } else { Wait::Head };
        self.waits(wait);
    }

    /// Records bytes over HTTP/1.1. Returns true if they begin another head, whose time
    /// limit then starts.
    pub(crate) fn heard(&self) -> bool {
        let begins = self.expects_head.swap(false, Relaxed);
        if begins {
            self.waits(Wait::Head);
        }
        begins
    }

    fn waits(&self, wait: Wait) {
        self.places.lock().pool(self.full).waits(self.id, wait);
    }

    /// Begins a request. The request ends when the returned value is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> ActiveRequest {
        self.expects_head.store(false, Relaxed);
        self.begin(true)
    }

    /// Begins a request that may last forever. Its connection waits as if the request
    /// were not there.
    pub(crate) fn enter_endless(self: &Arc<Self>) -> ActiveRequest {
        self.begin(false)
    }

    fn begin(self: &Arc<Self>, works: bool) -> ActiveRequest {
        self.requests.fetch_add(1, Relaxed);
        let outgoing = Arc::new(Outgoing::new());
        let mut state = self.places.lock();
        let request = state.number();
        let pool = state.pool(self.full);
        pool.enter(self.id, request, outgoing.clone(), works);
        drop(state);
        ActiveRequest {
            place: self.clone(),
            request,
            outgoing,
        }
    }

    /// Number of requests on the connection.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }

    /// Returns true if all requests have ended, and the next bytes begin another.
    pub(crate) fn expects_head(&self) -> bool {
        self.expects_head.load(Relaxed)
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.id);
    }
}

/// A request in service. It keeps its connection's place.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    place: Arc<Place>,
    request: u64,
    /// The place holds this too, but never longer than this value. So no part of an
    /// answer is dropped under the places' lock.
    outgoing: Arc<Outgoing>,
}

impl ActiveRequest {
    pub(crate) fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// Returns the time by the port's clock.
    pub(crate) fn now(&self) -> u64 {
        self.place.places.clock(Instant::now())
    }

    /// Records that something must be taken from now on.
    pub(crate) fn hand_over(&self) {
        self.outgoing.hand_over(self.now());
    }

    /// Counts the reason of an end.
    pub(crate) fn count(&self, reason: Closed) {
        self.place.places.count(reason);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let Self { place, request, .. } = self;
        place.requests.fetch_sub(1, Relaxed);
        let mut state = place.places.lock();
        let idle = state.pool(place.full).leave(place.id, *request);
        drop(state);
        place.expects_head.store(idle, Relaxed);
    }
}

#[cfg(test)]
mod tests;
