//! The watch over exchanges with peers: a thread ends waits that would last for ever. It looks
//! at the exchange from device to device, at the host's group and at the clock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_backend::{Axis, Exchanged, Groups};
use lockstep_collective::{AbortHandle, CollectiveError, Stall};

use super::progress::{Peer, Progress, Track};
use crate::error::CudaError;
use crate::runtime::Arrivals;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Time for which data of a peer that has left may still be on its way.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Number of looks without a sign of life after which a peer counts as silent. Each look of a
/// peer is a sign of life.
const SILENT: u32 = 25;

/// A connection from device to device, whose waits last for ever unless somebody ends them.
pub(crate) trait Way: Send + Sync {
    /// The reason why the connection has failed, if it has.
    fn failed(&self) -> Option<String>;
    /// Ends the device's waits for peers, without an error on the device. Does not wait for
    /// that.
    fn abort(&self);
}

/// All connections of a rank.
type Ways = Vec<Arc<dyn Way>>;

/// State of a rank's exchange from device to device, shared by the watching thread and the
/// callers.
pub(crate) struct Watched {
    rank: usize,
    /// Aborts the host's group, which ends together with the connections of devices.
    host: AbortHandle,
    /// Number of all ranks, and number of ranks of a DP rank.
    ranks: (usize, usize),
    /// Data on its way.
    state: Mutex<State>,
    /// The error that ended the exchange, if it has ended.
    ended: OnceLock<CollectiveError>,
}

struct State {
    /// Longest time for which data may be on its way.
    patience: Duration,
    /// Time since which data may be on its way that nobody has waited for; `None` if there is
    /// no such data.
    since: Option<Instant>,
    /// All collectives begun so far.
    track: Track,
    /// True while ranks try the connections. If they fail then, they end without the host's
    /// group.
    trial: bool,
}

/// Observations of the watching thread.
#[derive(Default)]
struct Seen {
    /// Time when a peer was first seen to have left.
    left: Option<Instant>,
    /// By rank: number of signs of life, and time of the last change of it.
    beats: Vec<(u64, Option<Instant>)>,
}

impl Watched {
    /// Makes the state of this rank in `groups`.
    pub(crate) fn new(groups: &mut Groups, patience: Duration) -> Arc<Self> {
        let [(rank, size), (_, near)] =
            [Axis::World, Axis::Attention].map(|axis| groups.rank_and_size(axis));
        Arc::new(Self {
            rank,
            ranks: (size, near),
            host: groups.of(Axis::World).abort_handle(),
            state: Mutex::new(State {
                patience,
                since: None,
                track: Track::new(),
                trial: false,
            }),
            ended: OnceLock::new(),
        })
    }

    /// Allows data to be on its way for `patience` from now on.
    pub(crate) fn wait_for(&self, patience: Duration) {
        self.state().patience = patience;
    }

    /// Begins a trial of the connections: ranks vote by the host's group whether they work.
    /// Until [`Self::adopt`], that group goes on if the connections end.
    pub(crate) fn try_out(&self) {
        self.state().trial = true;
    }

    /// Tells peers that the connections don't work for this rank. Peers in the trial that can
    /// see it end theirs, too, before their patience ends.
    pub(crate) fn give_up(&self) {
        let mut state = self.state();
        state.track.blame(self.rank);
        self.host.show(&state.track.shown().to_words());
    }

    /// Ends the trial, since the connections work for all ranks. From now on the host's group
    /// ends with them.
    ///
    /// # Errors
    /// [`CudaError::Peers`] if the exchange has ended since.
    pub(crate) fn adopt(&self) -> Result<(), CudaError> {
        self.state().trial = false;
        self.check()
    }

    /// Notes that data of these collectives is on its way from now on.
    pub(crate) fn begin(&self, exchanges: &[Exchanged]) {
        let mut state = self.state();
        state.since.get_or_insert_with(Instant::now);
        let track = &mut state.track;
        exchanges.iter().for_each(|one| track.begin(one));
        self.host.show(&track.shown().to_words());
    }

    /// # Errors
    /// [`CudaError::Peers`] if the exchange was ended.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        match self.ended.get() {
            None => Ok(()),
            Some(error) => Err(CudaError::Peers(Box::new(error.clone()))),
        }
    }

    /// Ends all connections and the host's group, for this rank and for peers that wait for it.
    /// In a trial only the connections end.
    fn end(&self, ways: &Ways, error: CollectiveError) {
        tracing::debug!(%error, "the devices' collectives end");
        if let CollectiveError::Deserted { peer, .. }
        | CollectiveError::Stalled {
            stall: Stall::Missing { peer, .. } | Stall::Silent { peer, .. },
            ..
        } = &error
        {
            let mut state = self.state();
            state.track.blame(*peer);
            self.host.show(&state.track.shown().to_words());
        }
        let trial = {
            let state = self.state();
            // Set before the stream goes on, so that nobody takes its contents for data.
            let _ = self.ended.set(error);
            state.trial
        };
        if !trial {
            // Before the connections: their end may need all ranks to end theirs.
            self.host.abort();
        }
        ways.iter().for_each(|way| way.abort());
    }

    /// The reason to end the exchange now, if there is one.
    fn look(&self, ways: &Ways, seen: &mut Seen) -> Option<CollectiveError> {
        let rank = self.rank;
        self.live(seen);
        let (since, patience) = {
            let state = self.state();
            (state.since, state.patience)
        };
        let silent = silent(&seen.beats, self.rank);
        let stall = || match self.state().track.stall(&self.peers()) {
            Stall::Unknown => silent.clone().unwrap_or(Stall::Unknown),
            known => known,
        };
        if self.host.is_aborted() {
            let missing = since.and_then(|_| match stall() {
                Stall::Missing { peer, .. } | Stall::Silent { peer, .. } => Some(peer),
                Stall::Diverged { .. } | Stall::Unknown => None,
            });
            return Some(CollectiveError::Aborted { rank, missing });
        }
        if let Some(reason) = ways.iter().find_map(|way| way.failed()) {
            return Some(CollectiveError::Way { rank, reason });
        }
        if let Some(reason) = self.given_up() {
            return Some(CollectiveError::Way { rank, reason });
        }
        let Some(waited) = since.map(|since| since.elapsed()) else {
            seen.left = None;
            return None;
        };
        let stalled = |stall| CollectiveError::Stalled {
            rank,
            waited,
            stall,
        };
        if waited >= patience {
            return Some(stalled(stall()));
        }
        let left_first = self.host.departed()?;
        let gone = seen.left.get_or_insert_with(Instant::now).elapsed();
        if gone < LAST_WORDS {
            return None;
        }
        let peer = self.cause_of(left_first);
        // A peer that gave up its wait is not the peer that was waited for.
        Some(match stall() {
            Stall::Missing { peer: other, .. } | Stall::Silent { peer: other, .. }
                if other == peer =>
            {
                CollectiveError::Deserted { rank, peer }
            }
            Stall::Unknown => CollectiveError::Deserted { rank, peer },
            stall => stalled(stall),
        })
    }

    /// In a trial, the reason that a peer gives up, as far as peers can be seen.
    fn given_up(&self) -> Option<String> {
        if !self.state().trial {
            return None;
        }
        let mut peers = self.peers().into_iter();
        let peer = peers.find(|peer| peer.shown.blames() == Some(peer.rank))?;
        Some(format!("rank {} could not use NCCL", peer.rank))
    }

    /// Gives a sign of life, and looks for signs of the other ranks.
    fn live(&self, seen: &mut Seen) {
        {
            let mut state = self.state();
            state.track.beat();
            self.host.show(&state.track.shown().to_words());
        }
        seen.beats.resize(self.ranks.0, (0, None));
        for Peer { rank, shown, .. } in self.peers() {
            let (beats, since) = &mut seen.beats[rank];
            if since.is_none() || *beats != shown.beats() {
                (*beats, *since) = (shown.beats(), Some(Instant::now()));
            }
        }
    }

    /// The peer that left, or the peer that made it leave.
    fn cause_of(&self, left: usize) -> usize {
        let (size, _) = self.ranks;
        let blamed = |peer: &usize| {
            let shown = self.host.shown(*peer)?;
            let blamed = Progress::from_words(&shown).blames()?;
            (blamed != self.rank).then_some(blamed)
        };
        let chain = std::iter::successors(Some(left), blamed);
        chain.take(size).last().unwrap_or(left)
    }

    /// The other ranks, as far as they can be seen.
    fn peers(&self) -> Vec<Peer> {
        let (size, near) = self.ranks;
        let dp_rank = |rank: usize| rank / near.max(1);
        let others = (0..size).filter(|peer| *peer != self.rank);
        let seen = others.filter_map(|rank| {
            Some(Peer {
                rank,
                near: dp_rank(rank) == dp_rank(self.rank),
                shown: Progress::from_words(&self.host.shown(rank)?),
            })
        });
        seen.collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrivals for Watched {
    fn arrived(&self) -> Result<(), CudaError> {
        self.check()?;
        self.state().since = None;
        Ok(())
    }
}

/// The peer that has given no sign of life for longest, if that is too long.
fn silent(beats: &[(u64, Option<Instant>)], own: usize) -> Option<Stall> {
    let others = beats.iter().enumerate().filter(|(rank, _)| *rank != own);
    let waits = others.filter_map(|(peer, (_, since))| Some((since.as_ref()?.elapsed(), peer)));
    let (silent, peer) = waits.max()?;
    (silent >= LOOK * SILENT).then_some(Stall::Silent { peer, silent })
}

/// The watching thread. It owns the connections, and ends when this is dropped.
pub(crate) struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// # Errors
    /// [`CudaError::Unsupported`] if no further thread can be started.
    pub(crate) fn over(ways: Ways, watched: Arc<Watched>) -> Result<Self, CudaError> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = stop.clone();
        let watch = move || {
            let (stop, changed) = &*seen;
            let mut looks = Seen::default();
            let mut stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stopped {
                let waited = changed.wait_timeout(stopped, LOOK);
                (stopped, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if let Some(error) = watched.look(&ways, &mut looks) {
                    return watched.end(&ways, error);
                }
            }
        };
        let name = "nccl watchdog".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(watch);
        let thread = thread.map_err(|error| {
            CudaError::Unsupported(format!(
                "no thread can be started that watches over NCCL: {error}; raise the limit of processes (ulimit -u)"
            ))
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (stop, changed) = &*self.stop;
        *stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}
