//! One budget for the bytes that all requests of a process hold together, as
//! gRPC core's `ResourceQuota` and Envoy's overload manager have it, with parts
//! of it that some requests may not exceed: those of one peer, and those of
//! services that ask for no key.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::sync::watch;
use tonic::Status;

use crate::{peer::Peer, wanted::Wanted};

/// A request of so many bytes at most may use a budget's last quarter, so
/// that a few large ones don't keep out all others.
const SMALL: usize = 64 << 10;
/// A peer's requests hold at most this part of a budget, so that no single one
/// keeps out all others.
const OF_A_PEER: usize = 2;
/// Requests of services without a key hold at most this part of a budget.
const WITHOUT_KEY: usize = 16;
/// But this much, where that is less than a few connections need.
const LEAST_WITHOUT_KEY: usize = 16 * SMALL;

/// The bytes that requests may hold, and those that they do.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    taken: AtomicUsize,
    /// What this is a part of: what is taken here is taken there too.
    whole: Option<Arc<Budget>>,
    over: OverBudget,
    /// The parts of peers whose connections have places.
    peers: Mutex<BTreeMap<Peer, Weak<Budget>>>,
    /// Told when somebody finds no room that there would be without the others.
    wanted: watch::Sender<()>,
}

/// The budget has not so many bytes left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// For nobody.
    #[error(
        "The server holds as many bytes of requests as --max-request-memory allows; try again \
         later."
    )]
    Process,
    /// For this peer.
    #[error(
        "The server holds as many bytes of requests of this address as it may, half of \
         --max-request-memory; try again later."
    )]
    Peer,
    /// For services that ask for no key.
    #[error(
        "The server holds as many bytes of requests that need no key as it may, a sixteenth of \
         --max-request-memory; try again later."
    )]
    WithoutKey,
}

/// What one request has taken, given back when this is dropped.
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
    /// A budget of `limit` bytes.
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
            wanted: watch::Sender::default(),
        }
    }

    /// The part of it for services that ask for no key.
    pub(crate) fn without_key(self: &Arc<Self>) -> Arc<Self> {
        let limit = (self.limit / WITHOUT_KEY).max(LEAST_WITHOUT_KEY);
        let limit = limit.min(self.limit);
        let whole = Some(self.clone());
        Arc::new(Self::part(limit, whole, OverBudget::WithoutKey))
    }

    /// The part of it for a peer, the same as long as somebody has it.
    pub(crate) fn of_peer(self: &Arc<Self>, peer: Peer) -> Arc<Self> {
        let mut peers = self.peers();
        if let Some(own) = peers.get(&peer).and_then(Weak::upgrade) {
            return own;
        }
        // One whose connections have ended needs no entry.
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

    /// Nothing yet, for one request.
    pub(crate) fn charge(self: &Arc<Self>) -> Charge {
        Charge {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Tells of those who find no room from now on, here and in what this is a part of.
    pub(crate) fn wanted(&self) -> Wanted {
        let budgets = std::iter::successors(Some(self), |part| part.whole.as_deref());
        Wanted::new(budgets.map(|budget| &budget.wanted))
    }

    /// Bytes that requests may hold.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that requests hold now.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Takes `bytes` more for a request that then counts as one of `own` bytes here,
    /// and of `above` in what this is a part of; in all of them or in none.
    fn take(&self, bytes: usize, own: usize, above: usize) -> Result<(), OverBudget> {
        let limit = match own <= SMALL {
            true => self.limit,
            false => self.of_large(),
        };
        let more = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        if self.taken.fetch_update(Relaxed, Relaxed, more).is_err() {
            // Who asks for more than there is waits for nobody.
            if own.max(bytes) <= limit {
                self.wanted.send_replace(());
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

    /// What large requests may have of it.
    fn of_large(&self) -> usize {
        self.limit - self.limit / 4
    }

    /// The most bytes that one charge may take where nobody else has any but the same
    /// request, which has `beside`. What this is a part of has more.
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
    /// Bytes that it has taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tells of those who find no room from now on where this has some.
    pub(crate) fn wanted(&self) -> Wanted {
        self.budget.wanted()
    }

    /// The most bytes that another charge of the same request could take, where nobody
    /// else has any.
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

    /// As [`Self::add`], for a request that has so many bytes `beside` these.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub(crate) fn add_beside(&mut self, bytes: usize, beside: usize) -> Result<(), OverBudget> {
        let own = self.bytes.saturating_add(beside).saturating_add(bytes);
        self.take(bytes, own, own)
    }

    /// Takes `bytes` more for an answer, whose work is done and for which `reserved`
    /// bytes were taken before: beyond the part of its peer it counts as large as
    /// that alone, so that large requests of others don't undo a small one.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub(crate) fn add_answer(&mut self, bytes: usize, reserved: usize) -> Result<(), OverBudget> {
        self.take(bytes, self.bytes.saturating_add(bytes), reserved)
    }

    fn take(&mut self, bytes: usize, own: usize, above: usize) -> Result<(), OverBudget> {
        // Others may have taken what large requests may not have: who wants no
        // more has nothing to do with that.
        if bytes > 0 {
            self.budget.take(bytes, own, above)?;
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Gives back what is beyond `bytes`.
    pub(crate) fn keep(&mut self, bytes: usize) {
        let beyond = self.bytes.saturating_sub(bytes);
        if beyond > 0 {
            self.budget.give_back(beyond);
            self.bytes -= beyond;
        }
    }

    /// All that it has taken, so that this has nothing.
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
