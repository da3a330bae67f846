//! Who ends what would wait for ever for peers' data: a thread that looks at the
//! devices' own ways, at the host's group and at the clock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_backend::{Axis, Exchanged, Groups};
use lockstep_collective::{AbortHandle, CollectiveError, Stall};

use crate::error::CudaError;
use crate::progress::{Peer, Progress, Track};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long data of a peer that has left may still be on its way.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// After how many looks without a sign of life a peer counts as silent, whose own look
/// is one.
const SILENT: u32 = 25;

/// A way from device to device that waits for ever, if nobody ends it.
pub(crate) trait Way: Send + Sync {
    /// Why it has failed, if it has.
    fn failed(&self) -> Option<String>;
    /// Has what the device waits for end, without an error there, and does not wait for
    /// that.
    fn abort(&self);
}

/// All that a rank has.
type Ways = Vec<Arc<dyn Way>>;

/// What the devices' own way has to do with, as both threads see it.
pub(crate) struct Watched {
    rank: usize,
    /// Of the host's group, which ends together with the devices'.
    host: AbortHandle,
    /// This one, and how many of them share its DP rank.
    ranks: (usize, usize),
    /// What is on its way.
    state: Mutex<State>,
    /// What ended it.
    ended: OnceLock<CollectiveError>,
}

struct State {
    /// The longest that data may be on its way.
    patience: Duration,
    /// Since when data may be on its way that nobody has waited for.
    since: Option<Instant>,
    /// All that has been.
    track: Track,
    /// Ranks try whether the way works: where it does not, it ends without the host's group.
    trial: bool,
}

/// What the thread has seen so far.
#[derive(Default)]
struct Seen {
    /// Since when a peer has left.
    left: Option<Instant>,
    /// By rank: signs of life, and since when there is no other.
    beats: Vec<(u64, Option<Instant>)>,
}

impl Watched {
    /// Of the rank that `groups` say.
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

    /// Data may be on its way for so long from now on.
    pub(crate) fn wait_for(&self, patience: Duration) {
        self.state().patience = patience;
    }

    /// Ranks try the way from now on, and vote by the host's group whether it works: until
    /// [`Self::adopt`], that group goes on where the way ends.
    pub(crate) fn try_out(&self) {
        self.state().trial = true;
    }

    /// The way does not work for this rank: peers that try it and can see that end it too,
    /// before their patience does.
    pub(crate) fn give_up(&self) {
        let mut state = self.state();
        state.track.blame(self.rank);
        self.host.show(&state.track.shown().to_words());
    }

    /// It works for all: from now on the host's group ends with it.
    ///
    /// # Errors
    /// [`CudaError::Peers`] where it has ended since.
    pub(crate) fn adopt(&self) -> Result<(), CudaError> {
        self.state().trial = false;
        self.check()
    }

    /// Data of these collectives is on its way from now on.
    pub(crate) fn begin(&self, exchanges: &[Exchanged]) {
        let mut state = self.state();
        state.since.get_or_insert_with(Instant::now);
        let track = &mut state.track;
        exchanges.iter().for_each(|one| track.begin(one));
        self.host.show(&track.shown().to_words());
    }

    /// All that was on its way has come.
    ///
    /// # Errors
    /// [`CudaError::Peers`] where it has not: what lies there is nobody's.
    pub(crate) fn arrived(&self) -> Result<(), CudaError> {
        self.check()?;
        self.state().since = None;
        Ok(())
    }

    /// # Errors
    /// [`CudaError::Peers`] where it was ended.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        match self.ended.get() {
            None => Ok(()),
            Some(error) => Err(CudaError::Peers(Box::new(error.clone()))),
        }
    }

    /// Ends all ways and the host's group, for this rank and for whoever waits for it; of ways
    /// that are tried, these alone.
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
            // Before the stream goes on, so that nobody takes what it brings for data.
            let _ = self.ended.set(error);
            state.trial
        };
        if !trial {
            // Before the ways: these may come to their ends when all ranks end theirs.
            self.host.abort();
        }
        ways.iter().for_each(|way| way.abort());
    }

    /// Why it has to end now, if it has.
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
        // One that gave up its wait is not who was waited for.
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

    /// That a peer has, if it can be seen that one did in a trial.
    fn given_up(&self) -> Option<String> {
        if !self.state().trial {
            return None;
        }
        let mut peers = self.peers().into_iter();
        let peer = peers.find(|peer| peer.shown.blames() == Some(peer.rank))?;
        Some(format!("rank {} could not use NCCL", peer.rank))
    }

    /// Gives a sign of life, and looks for those of others.
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

    /// The peer that left, or the one for whose sake it did.
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

    /// The others, as far as they can be seen.
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

/// The peer that has given no sign of life for longest, if that is too long.
fn silent(beats: &[(u64, Option<Instant>)], own: usize) -> Option<Stall> {
    let others = beats.iter().enumerate().filter(|(rank, _)| *rank != own);
    let waits = others.filter_map(|(peer, (_, since))| Some((since.as_ref()?.elapsed(), peer)));
    let (silent, peer) = waits.max()?;
    (silent >= LOOK * SILENT).then_some(Stall::Silent { peer, silent })
}

/// The thread, which has the ways and ends when this is dropped.
pub(crate) struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// # Errors
    /// [`CudaError::Unsupported`] where there can be no further thread.
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
