//! A time limit of each mask, for grammars that clients write: they may be as ambiguous as they
//! like, and then a mask takes the longer the longer the output is.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use llguidance::CancellationHandle;

/// A thread that cancels what takes too long. It ends with this value.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    started: bool,
    ended: bool,
    number: u64,
    entries: Vec<Entry>,
    /// The time at which the thread looks again by itself; `None` if it waits for an entry.
    looks_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    until: Instant,
    handle: CancellationHandle,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels entries whose time is over, until the watch ends.
    fn run(&self) {
        let mut state = self.state();
        while !state.ended {
            let now = Instant::now();
            for entry in &state.entries {
                if entry.until <= now {
                    entry.handle.cancel();
                }
            }
            state.entries.retain(|entry| entry.until > now);
            let next = state.entries.iter().map(|entry| entry.until).min();
            state.looks_at = next;
            state = match next {
                Some(until) => {
                    let waited = self.changed.wait_timeout(state, until - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Watch {
    /// Cancels `handle` after `limit`, unless the result is dropped before.
    pub fn begin(&self, handle: CancellationHandle, limit: Duration) -> Watched {
        let mut state = self.shared.state();
        if !state.started {
            let shared = self.shared.clone();
            let thread = thread::Builder::new().name("grammar-watch".to_owned());
            state.started = thread.spawn(move || shared.run()).is_ok();
        }
        state.number += 1;
        let number = state.number;
        let until = Instant::now() + limit;
        state.entries.push(Entry {
            number,
            until,
            handle,
        });
        // Most entries are gone long before their time, and need not wake the thread.
        if state.looks_at.is_none_or(|looks_at| until < looks_at) {
            self.shared.changed.notify_one();
        }
        Watched {
            shared: self.shared.clone(),
            number,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
    }
}

/// Work that is watched.
pub(crate) struct Watched {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.entries.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_cancelled_and_nothing_else() {
        let watch = Watch::default();
        let [soon, late, done] = [(); 3].map(|()| CancellationHandle::default());
        drop(watch.begin(done.clone(), Duration::ZERO));
        let was_done = done.is_cancelled();
        let _late = watch.begin(late.clone(), Duration::from_secs(3600));
        let _soon = watch.begin(soon.clone(), Duration::from_millis(1));
        while !soon.is_cancelled() {
            thread::yield_now();
        }
        assert!(!late.is_cancelled());
        assert_eq!(done.is_cancelled(), was_done, "it was over");
    }
}
