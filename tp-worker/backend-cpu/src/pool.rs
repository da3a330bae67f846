//! A pinned thread pool that runs one job at a time.
//!
//! A job is a number of chunks that threads claim one by one; the caller is thread 0 and
//! works too. Every thread begins with a share of its own, which is contiguous and always
//! the same. Then the thread helps with chunks that others have not begun. So a core that
//! other processes disturb does not hold up the rest. The caller waits only for threads that
//! have joined the job, not for one that still sleeps when the last chunk is claimed.
//!
//! A forward pass issues hundreds of short jobs, so workers spin for a moment
//! between jobs and sleep when none comes.

mod pin;
mod shared;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use lockstep_collective::is_crowded;

use crate::amx;
use crate::partition::share;
use pin::pin_current_thread;
use shared::{Job, Shared};

/// A pool of threads. Dropping it ends the threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads (at least 1, with the caller). `pin[i]` is the core of
    /// thread `i`; the calling thread is pinned, too. Threads do not spin when they
    /// outnumber the cores, or where the machine is `crowded` anyway.
    pub(crate) fn new(
        threads: usize,
        pin: Option<&[usize]>,
        crowded: bool,
    ) -> std::io::Result<Self> {
        let crowded = crowded || (pin.is_none() && is_crowded(threads));
        let mut pool = Self {
            shared: Arc::new(Shared::new(threads, crowded)),
            workers: Vec::new(),
        };
        let core = |thread: usize| pin.and_then(|cores| cores.get(thread).copied());
        let (started, starts) = std::sync::mpsc::channel();
        for thread in 1..threads {
            let (shared, core, started) = (pool.shared.clone(), core(thread), started.clone());
            let body = move || {
                // The receiver outlives the start of every worker, and waits
                // until each has dropped its sender.
                let _ = started.send(core.map_or(Ok(()), pin_current_thread));
                drop(started);
                shared.work(thread);
            };
            let name = format!("kernel-{thread}");
            pool.workers
                .push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        drop(started);
        starts.iter().collect::<std::io::Result<()>>()?;
        core(0).map_or(Ok(()), pin_current_thread)?;
        Ok(pool)
    }

    /// Threads, with the caller.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(share)` once for every share in `0..threads()` and returns
    /// when all are done. Thread `i` takes share `i` if it comes in time.
    ///
    /// # Panics
    /// With the panic of a share, once all threads are done.
    pub(crate) fn run<F: Fn(usize) + Sync>(&mut self, job: F) {
        let threads = self.threads();
        self.for_chunks(threads, |_, share| job(share));
    }

    /// Runs `body(thread, chunk)` once for every chunk in `0..count` and returns when all
    /// are done. No two calls at a time have the same `thread`, which is below
    /// [`Self::threads`].
    ///
    /// A chunk's thread depends on timing, so a chunk's result must not depend on its
    /// thread. Thread `i` begins with the chunks `share(count, threads, i)` and then takes
    /// over the rest of other threads' shares. Within a share chunks are begun in ascending
    /// order. A chunk should be worth some microseconds: claiming one costs a tenth of one.
    ///
    /// # Panics
    /// With the panic of a chunk, once all threads are done; other chunks may
    /// not have run then.
    pub(crate) fn for_chunks(&mut self, count: usize, body: impl Fn(usize, usize) + Sync) {
        if self.workers.is_empty() || count <= 1 {
            let _tiles = amx::Release;
            return (0..count).for_each(|chunk| body(0, chunk));
        }
        let (shared, threads) = (&*self.shared, self.threads());
        for (thread, next) in shared.next.iter().enumerate() {
            next.0
                .store(share(count, threads, thread).start, Ordering::Relaxed);
        }
        let claim = |thread: usize| {
            let _tiles = amx::Release;
            for turn in 0..threads {
                let owner = (thread + turn) % threads;
                let (next, end) = (&shared.next[owner].0, share(count, threads, owner).end);
                // Looking first keeps the line shared once the share is used up.
                while next.load(Ordering::Relaxed) < end {
                    let chunk = next.fetch_add(1, Ordering::Relaxed);
                    if chunk < end {
                        body(thread, chunk);
                    }
                }
            }
        };
        let job: *const (dyn Fn(usize) + Sync + '_) = &raw const claim;
        // SAFETY: only the lifetime changes; `finish` below returns after the
        // last worker has left the job, and this function not before it.
        let job: Job = unsafe { std::mem::transmute(job) };
        // SAFETY: `&mut self`: no job is open, and the last one was finished.
        unsafe { shared.open(job) };
        self.wake();
        let own = catch_unwind(AssertUnwindSafe(|| claim(0)));
        let theirs = shared.finish();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    fn wake(&self) {
        for (worker, asleep) in self.workers.iter().zip(&self.shared.asleep) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
        self.wake();
        for worker in self.workers.drain(..) {
            // A worker's panic was handed to the caller; nothing is left to report.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests;
