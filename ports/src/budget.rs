//! One budget for the bytes that all requests of a process hold together, like gRPC
//! core's `ResourceQuota` and Envoy's overload manager. Some requests may not exceed a
//! part of it: the requests of one peer, and the requests of services that need no key.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::sync::watch;
use tonic::Status;

use crate::{memory_pressure::MemoryPressure, peer::Peer};

/// Maximum bytes of a request that may use a budget's last quarter. So a few large
/// requests cannot keep out all others.
const SMALL: usize = 64 << 10;
/// Divisor of the part that one peer's requests may hold, so that no single peer keeps
/// out all others.
const OF_A_PEER: usize = 2;
/// Divisor of the part that requests of services without a key may hold.
const WITHOUT_KEY: usize = 16;
/// Minimum of that part, enough for a few connections.
const LEAST_WITHOUT_KEY: usize = 16 * SMALL;

/// The bytes that requests may hold, and the bytes that they hold.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    taken: AtomicUsize,
    /// The budget of which this is a part. Bytes that are taken here are taken there
    /// too.
    whole: Option<Arc<Budget>>,
    over: OverBudget,
    /// Parts of the peers whose connections have places.
    peers: Mutex<BTreeMap<Peer, Weak<Budget>>>,
    /// Notified when a request finds no memory that would be there without the others.
    pressure: watch::Sender<()>,
}

/// Error of a budget that has too few bytes left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// The whole budget is used.
    #[error(
        "The server holds as many bytes of requests as --max-request-memory allows; try again \
         later."
    )]
    Process,
    /// The peer's part of the memory is used up.
    #[error(
        "The server holds as many bytes of requests of this address as it may, half of \
         --max-request-memory; try again later."
    )]
    Peer,
    /// The part of services that need no key is used.
    #[error(
        "The server holds as many bytes of requests that need no key as it may, a sixteenth of \
         --max-request-memory; try again later."
    )]
    WithoutKey,
}

/// Bytes that one request has taken; dropping this gives them back.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl From<OverBudget> for Status {
    fn from(over: OverBudget) -> Self {
        let mut status = Self::resource_exhausted(over.to_string());
        status.metadata_mut().insert("retry-after", 1.into());
        status
    }
}

impl Budget {
    /// Makes a budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self::part(limit, None, OverBudget::Process))
    }

    fn part(limit: usize, whole: Option<Arc<Self>>, over: OverBudget) -> Self {
        Self {
            limit,
            taken: AtomicUsize::new(0),
            whole,
            over,
            peers: Mutex::default(),
            pressure: watch::Sender::default(),
        }
    }

    /// Returns the part for services that need no key.
    pub(crate) fn without_key(self: &Arc<Self>) -> Arc<Self> {
        let limit = (self.limit / WITHOUT_KEY).max(LEAST_WITHOUT_KEY);
        let limit = limit.min(self.limit);
        let whole = Some(self.clone());
        Arc::new(Self::part(limit, whole, OverBudget::WithoutKey))
    }

    /// Returns the part for a peer. Calls return the same part while it is in use.
    pub(crate) fn of_peer(self: &Arc<Self>, peer: Peer) -> Arc<Self> {
        let mut peers = self.peers();
        if let Some(own) = peers.get(&peer).and_then(Weak::upgrade) {
            return own;
        }
        // Entries of peers whose connections have ended are removed.
        peers.retain(|_, own| own.strong_count() > 0);
        let limit = self.limit / OF_A_PEER;
        let own = Self::part(limit, Some(self.clone()), OverBudget::Peer);
        let own = Arc::new(own);
        peers.insert(peer, Arc::downgrade(&own));
        own
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<Peer, Weak<Self>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an empty charge for one request.
    pub(crate) fn charge(self: &Arc<Self>) -> Charge {
        Charge {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Returns a notice for requests that find no memory from now on, in this budget
    /// and in the budgets that contain it.
    pub(crate) fn pressure(&self) -> MemoryPressure {
        let budgets = std::iter::successors(Some(self), |part| part.whole.as_deref());
        MemoryPressure::new(budgets.map(|budget| &budget.pressure))
    }

    /// Maximum bytes that requests may hold.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Number of bytes that requests hold now.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Takes `bytes` more for a request, here and in the budgets of which this is a
    /// part; all or nothing. With them the request counts as one of `own` bytes here
    /// and of `above` bytes there.
    fn take(&self, bytes: usize, own: usize, above: usize) -> Result<(), OverBudget> {
        let limit = match own <= SMALL {
            true => self.limit,
            false => self.of_large(),
        };
        let more = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        if self.taken.fetch_update(Relaxed, Relaxed, more).is_err() {
            // A request for more than the limit is not helped by others, so nobody is
            // notified.
            if own.max(bytes) <= limit {
                self.pressure.send_replace(());
            }
            return Err(self.over);
        }
        let Some(whole) = &self.whole else {
            return Ok(());
        };
        whole.take(bytes, above, above).inspect_err(|_| {
            self.taken.fetch_sub(bytes, Relaxed);
        })
    }

    /// Maximum bytes that large requests may hold.
    fn of_large(&self) -> usize {
        self.limit - self.limit / 4
    }

    /// Returns the most bytes that one charge may take if only the same request holds
    /// others, `beside`. The budget of which this is a part has more.
    fn most(&self, beside: usize) -> usize {
        let large = self.of_large().saturating_sub(beside);
        match large > SMALL {
            true => large,
            false => self.limit.saturating_sub(beside).min(SMALL),
        }
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }
}

impl Charge {
    /// Number of bytes taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a notice for requests that find no memory from now on, in the budgets of
    /// this charge.
    pub(crate) fn pressure(&self) -> MemoryPressure {
        self.budget.pressure()
    }

    /// Returns the most bytes that another charge of the same request could take if no
    /// other request held any.
    pub(crate) fn most_beside(&self) -> usize {
        self.budget.most(self.bytes)
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub fn add(&mut self, bytes: usize) -> Result<(), OverBudget> {
        self.add_beside(bytes, 0)
    }

    /// Takes bytes like [`Self::add`], for a request that holds `beside` bytes
    /// elsewhere.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub(crate) fn add_beside(&mut self, bytes: usize, beside: usize) -> Result<(), OverBudget> {
        let own = self.bytes.saturating_add(beside).saturating_add(bytes);
        self.take(bytes, own, own)
    }

    /// Takes `bytes` more for an answer that had reserved `reserved` bytes. Its work is
    /// done. Beyond the peer's part, the answer counts only as large as `reserved`. So
    /// large requests of others cannot undo a small one.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub(crate) fn add_answer(&mut self, bytes: usize, reserved: usize) -> Result<(), OverBudget> {
        self.take(bytes, self.bytes.saturating_add(bytes), reserved)
    }

    fn take(&mut self, bytes: usize, own: usize, above: usize) -> Result<(), OverBudget> {
        // Other requests may have taken the quarter that large requests may not have.
        // That does not matter to a request that wants no more.
        if bytes > 0 {
            self.budget.take(bytes, own, above)?;
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Gives back all bytes beyond `bytes`.
    pub(crate) fn keep(&mut self, bytes: usize) {
        let beyond = self.bytes.saturating_sub(bytes);
        if beyond > 0 {
            self.budget.give_back(beyond);
            self.bytes -= beyond;
        }
    }

    /// Moves all bytes to a new charge.
    pub(crate) fn hand_over(&mut self) -> Self {
        Self {
            budget: self.budget.clone(),
            bytes: std::mem::take(&mut self.bytes),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests;
