//! A pinned thread pool with one job at a time and a static share per thread.
//!
//! A forward pass issues hundreds of short jobs, so workers spin for a moment
//! between jobs and park only when none comes. The caller is thread 0.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds a worker spins for the next job before it parks, about 50–100 µs.
const SPINS: u32 = 2_000;
/// Rounds the caller spins for the last worker before it yields its core.
const FINISH_SPINS: u32 = 20_000;

/// The pool. Dropping it ends its threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts jobs; a change tells workers that `job` is new.
    epoch: AtomicU32,
    job: JobCell,
    /// Workers that have not finished the current job.
    pending: AtomicUsize,
    stop: AtomicBool,
    parked: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct JobCell(std::cell::UnsafeCell<Option<Job>>);
// SAFETY: the cell is written by the caller while no worker runs (`pending` is
// 0) and read by workers only after they saw the new epoch, which the caller
// stores after the write.
unsafe impl Sync for JobCell {}
// SAFETY: the pointer inside points at a `Sync` closure that `Pool::run` keeps
// alive while any worker may use it.
unsafe impl Send for JobCell {}

impl Pool {
    /// A pool of `threads` (at least 1, with the caller). `pin[i]` is the core
    /// of thread `i`; the calling thread, too, is pinned.
    pub(crate) fn new(threads: usize, pin: Option<&[usize]>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            job: JobCell(std::cell::UnsafeCell::new(None)),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        let core = |thread: usize| pin.and_then(|cores| cores.get(thread).copied());
        let mut pool = Self {
            shared,
            workers: Vec::new(),
        };
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

    /// Runs `job(thread)` on every thread and returns when all are done.
    ///
    /// # Panics
    /// With a worker's panic, once all threads are done.
    pub(crate) fn run<F: Fn(usize) + Sync>(&mut self, job: F) {
        if self.workers.is_empty() {
            return job(0);
        }
        let erased: *const (dyn Fn(usize) + Sync + '_) = &raw const job;
        // SAFETY: only the lifetime changes; this function does not return
        // before every worker is done with the pointer.
        let erased: Job = unsafe { std::mem::transmute(erased) };
        let shared = &*self.shared;
        shared.pending.store(self.workers.len(), Ordering::Relaxed);
        // SAFETY: no worker runs a job (`&mut self`, and the previous call waited).
        unsafe { *shared.job.0.get() = Some(erased) };
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.wake();
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.wait_for_workers();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        let panic = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn wake(&self) {
        for (worker, parked) in self.workers.iter().zip(&self.shared.parked) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Shared {
    fn work(&self, thread: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen, &self.parked[thread - 1]);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the epoch changed, so the caller wrote the job and waits
            // for `pending` before it writes again.
            if let Some(job) = unsafe { *self.job.0.get() } {
                // SAFETY: `Pool::run` keeps the closure alive until `pending` is 0.
                let run = AssertUnwindSafe(|| unsafe { (*job)(thread) });
                if let Err(panic) = catch_unwind(run) {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                }
            }
            self.pending.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the epoch differs from `seen`, spinning first.
    fn next_epoch(&self, seen: u32, parked: &AtomicBool) -> u32 {
        for _ in 0..SPINS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        loop {
            // Sequential consistency with `run`: either it sees the flag and
            // unparks, or the epoch loaded here is already the new one.
            parked.store(true, Ordering::SeqCst);
            let epoch = self.epoch.load(Ordering::SeqCst);
            if epoch != seen {
                parked.store(false, Ordering::Relaxed);
                return epoch;
            }
            std::thread::park();
        }
    }

    fn wait_for_workers(&self) {
        let mut spins = 0;
        while self.pending.load(Ordering::Acquire) > 0 {
            if spins < FINISH_SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.wake();
        for worker in self.workers.drain(..) {
            // A worker's panic was handed to `run`; nothing is left to report.
            let _ = worker.join();
        }
    }
}

#[cfg(target_os = "linux")]
fn pin_current_thread(core: usize) -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if core >= CpuSet::MAX_CPU {
        return Err(std::io::Error::other(format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
fn pin_current_thread(_core: usize) -> std::io::Result<()> {
    Err(std::io::Error::other(
        "pinning threads to cores works on Linux alone; leave it off",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_every_job_once() {
        let mut pool = Pool::new(4, None).unwrap();
        let counts: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..2_000 {
            pool.run(|thread| {
                counts[thread].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(
            counts
                .iter()
                .all(|count| count.load(Ordering::Relaxed) == 2_000)
        );
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(3, None).unwrap();
        for bad in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|thread| assert!(thread != bad, "kernel {bad} failed"));
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(&format!("kernel {bad} failed")));
        }
        let done = AtomicUsize::new(0);
        pool.run(|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3);
    }

    #[test]
    fn a_parked_pool_wakes_up() {
        let mut pool = Pool::new(2, None).unwrap();
        for _ in 0..20 {
            while !pool.shared.parked[0].load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let done = AtomicUsize::new(0);
            pool.run(|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 2);
        }
    }
}
