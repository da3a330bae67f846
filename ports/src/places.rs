//! Places for connections: a number per port and per peer, given to whoever
//! comes at the cost of who waits longest.

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
    outgoing::Outgoing,
    peer::{self, Peer},
    port::PortLimits,
    report::{Closed, Counters, PortReport},
};
use pool::Pool;
pub(crate) use pool::Wait;

/// Places for those who find no other, in which health alone is answered.
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
    /// When the port's clock began.
    began: Instant,
}

#[derive(Debug)]
struct State {
    regular: Pool,
    probes: Pool,
    /// Regular places by who has them.
    peers: BTreeMap<Peer, usize>,
    /// The next number of a connection or a request.
    next: u64,
}

/// A connection's place. It is free again when this is dropped, or when it was
/// taken away, which the other end of [`Places::admit`]'s channel tells.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    /// Why it is none of the regular places, but a probe's.
    pub(crate) full: Option<Full>,
    /// No request is on it, and what it sends begins one.
    expects_head: AtomicBool,
    /// Requests on it.
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

    /// A place for a new connection, and what says that it is taken away;
    /// `None` when even probes have none.
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

    /// Why there is no regular place, though somebody gives theirs away if they can.
    fn is_full(&self, state: &mut State, peer: Peer) -> Option<Full> {
        let own = state.peers.get(&peer).copied().unwrap_or_default();
        let port = state.regular.is_full();
        if own >= self.limits.per_peer && !self.evict_from(state, false, |other| other == peer) {
            return Some(if port { Full::Port } else { Full::Peer });
        }
        let room = !state.regular.is_full() || self.evict_from(state, false, |_| true);
        (!room).then_some(Full::Port)
    }

    /// Closes the connection that waits longest; whether there was one.
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

    /// Closes what has waited for too long at the time `now`, and drops answers
    /// that have.
    pub(crate) fn sweep(&self, now: Instant) {
        self.end_waits(now);
        let stalled = self.end_stalled(now);
        // Not under the lock, which the end of what an answer holds may need.
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
                // As below.
                let _ = end.send(Closed::Stalled);
            }
            answers.extend(stalled.answers);
        }
        answers
    }

    /// Milliseconds since the port's begin.
    fn clock(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    fn close(&self, state: &mut State, id: u64, reason: Closed) {
        if let Some(end) = state.remove(id) {
            self.counters.closed(reason);
            // Nobody listens when the connection has just ended by itself.
            let _ = end.send(reason);
        }
    }

    /// Counts what ended by other hands.
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
    /// The first bytes have come: over HTTP/1.1 a head has begun, an HTTP/2
    /// connection may open streams.
    pub(crate) fn detected(&self, http2: bool) {
        let wait = if http2 { Wait::Request } else { Wait::Head };
        self.waits(wait);
    }

    /// Bytes came over HTTP/1.1; whether they begin another head, whose time then
    /// runs from now.
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

    /// A request begins. It ends when what this gives is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> InService {
        self.expects_head.store(false, Relaxed);
        self.begin(true)
    }

    /// The same for a request that may last for ever: its connection waits as
    /// if it were not there.
    pub(crate) fn enter_endless(self: &Arc<Self>) -> InService {
        self.begin(false)
    }

    fn begin(self: &Arc<Self>, works: bool) -> InService {
        self.requests.fetch_add(1, Relaxed);
        let outgoing = Arc::new(Outgoing::new());
        let mut state = self.places.lock();
        let request = state.number();
        let pool = state.pool(self.full);
        pool.enter(self.id, request, outgoing.clone(), works);
        drop(state);
        InService {
            place: self.clone(),
            request,
            outgoing,
        }
    }

    /// Requests on it.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }

    /// Whether all requests on it have ended, and what it sends begins another.
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

/// A request that is being served keeps its connection's place.
#[derive(Debug)]
pub(crate) struct InService {
    place: Arc<Place>,
    request: u64,
    /// The place has it too, until this is dropped at the latest: so nothing of
    /// an answer ends under the places' lock.
    outgoing: Arc<Outgoing>,
}

impl InService {
    pub(crate) fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// By the port's clock.
    pub(crate) fn now(&self) -> u64 {
        self.place.places.clock(Instant::now())
    }

    /// Something is to be taken from now on.
    pub(crate) fn hand_over(&self) {
        self.outgoing.hand_over(self.now());
    }

    /// Counts what ended it.
    pub(crate) fn count(&self, reason: Closed) {
        self.place.places.count(reason);
    }
}

impl Drop for InService {
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
