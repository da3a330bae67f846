//! Lines on their way to a terminal or a pipe that may be read slowly or never.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that may wait. As many may be on their way out.
const ROOM: usize = 1 << 20;
/// The part of `ROOM` that is kept for urgent lines.
const RESERVE: usize = ROOM / 8;
/// Bytes of a buffer that are kept; a larger buffer is given back to the system.
const KEPT: usize = 64 << 10;

/// A bounded queue of lines and the thread that writes them. Callers never wait: lines that
/// find no room are dropped and counted. Cheap to clone; the thread lives as long as the
/// process.
#[derive(Debug, Clone)]
pub struct LineQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// True while the thread has taken lines that are not all written.
    writing: bool,
}

impl LineQueue {
    /// Starts the thread, which writes to `out`. If the system has no thread left, every line
    /// is lost and counted.
    pub fn start(thread: &str, out: impl Write + Send + 'static) -> Self {
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let _ = std::thread::Builder::new()
            .name(thread.to_owned())
            .spawn(move || own.write_to(out));
        Self(shared)
    }

    /// Queues whole lines, line ends included.
    pub fn push(&self, lines: &[u8]) {
        self.0.push(lines, ROOM - RESERVE);
    }

    /// Queues lines that say why something ended. A part of the room is reserved for them.
    pub fn push_urgent(&self, lines: &[u8]) {
        self.0.push(lines, ROOM);
    }

    /// Number of lines that found no room, or nobody to read them.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything queued is written, at most `limit`. Returns true if it is. For
    /// the end of a process only: nothing that serves calls this.
    pub fn flush(&self, limit: Duration) -> bool {
        let busy = |state: &mut State| state.writing || !state.waiting.is_empty();
        let wait = self
            .0
            .changed
            .wait_timeout_while(self.0.state(), limit, busy);
        let (_state, waited) = wait.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, lines: &[u8], room: usize) {
        let mut state = self.state();
        if state.waiting.len() + lines.len() > room {
            drop(state);
            self.count_lost(lines);
            return;
        }
        let idle = state.waiting.is_empty() && !state.writing;
        state.waiting.extend_from_slice(lines);
        drop(state);
        if idle {
            self.changed.notify_all();
        }
    }

    fn count_lost(&self, lines: &[u8]) {
        let ends = lines.iter().filter(|byte| **byte == b'\n').count();
        self.lost.fetch_add(ends.max(1) as u64, Ordering::Relaxed);
    }

    fn write_to(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        let mut told = 0;
        loop {
            self.take(&mut batch);
            let written = out.write_all(&batch).and_then(|()| out.flush());
            if written.is_err() {
                self.count_lost(&batch);
            }
            let lost = self.lost.load(Ordering::Relaxed);
            // A reader that is gone would not read this either.
            if written.is_ok() && lost > told {
                let lines = lost - told;
                tracing::warn!(lines, "log lines were lost: nobody read them in time");
            }
            told = lost;
            batch.clear();
            batch.shrink_to(KEPT);
        }
    }

    /// Waits for lines and takes all of them.
    fn take(&self, batch: &mut Vec<u8>) {
        let mut state = self.state();
        state.writing = false;
        if state.waiting.is_empty() {
            self.changed.notify_all();
        }
        let nothing = |state: &mut State| state.waiting.is_empty();
        let wait = self.changed.wait_while(state, nothing);
        let mut state = wait.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.waiting, batch);
        state.writing = true;
    }
}

#[cfg(test)]
mod tests;
