//! State that the caller and the workers of a pool share, and their meeting at the gate.
//!
//! The gate is one word with the job's number, whether the job is open, and the number of
//! workers in it. A worker joins an open job by adding itself. So the caller knows how many
//! workers to wait for, once it has closed the gate.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use lockstep_collective::Spin;

/// Time for which a worker spins for the next job. Longer than the caller's own work between
/// two jobs of a pass, too short to be noticed after a pass.
const BETWEEN_JOBS: Duration = Duration::from_micros(50);
/// Time for which the caller spins for workers that finish their last chunk.
const LAST_CHUNK: Duration = Duration::from_micros(200);

/// A job's number counts from bit 32 on.
const NUMBER: u64 = 1 << 32;
/// Bit that is set while the job may be joined.
const OPEN: u64 = 1 << 31;
/// Bits that count the workers in the job.
const INSIDE: u64 = OPEN - 1;

/// A closure that each thread of a job calls with its number.
pub(super) type Job = *const (dyn Fn(usize) + Sync);
type Panic = Box<dyn Any + Send>;

/// A value on cache lines of its own (the prefetcher fetches lines in pairs).
#[repr(align(128))]
pub(super) struct Line<T>(pub(super) T);

/// The state of a pool.
pub(super) struct Shared {
    gate: Line<AtomicU64>,
    job: Line<JobCell>,
    /// The next chunk of every thread's share.
    pub(super) next: Vec<Line<AtomicUsize>>,
    /// True if worker `i + 1` sleeps and needs to be woken.
    pub(super) asleep: Vec<AtomicBool>,
    /// The caller's thread while it sleeps.
    caller: Mutex<Option<Thread>>,
    stop: AtomicBool,
    panic: Mutex<Option<Panic>>,
    between_jobs: Spin,
    last_chunk: Spin,
}

struct JobCell(UnsafeCell<Option<Job>>);
// SAFETY: the caller writes the cell while the gate is closed and nobody is
// inside; workers read it only between joining an open job and leaving it.
unsafe impl Sync for JobCell {}
// SAFETY: the pointer inside points at a `Sync` closure that the caller keeps
// alive while anybody is inside the job.
unsafe impl Send for JobCell {}

impl Shared {
    pub(super) fn new(threads: usize, crowded: bool) -> Self {
        Self {
            gate: Line(AtomicU64::new(0)),
            job: Line(JobCell(UnsafeCell::new(None))),
            next: (0..threads).map(|_| Line(AtomicUsize::new(0))).collect(),
            asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            caller: Mutex::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            between_jobs: Spin::new(BETWEEN_JOBS, crowded),
            last_chunk: Spin::new(LAST_CHUNK, crowded),
        }
    }

    /// Lets workers join `job`.
    ///
    /// # Safety
    /// No job is open, nobody is inside one, and `job` lives until
    /// [`Self::finish`] has returned.
    pub(super) unsafe fn open(&self, job: Job) {
        // SAFETY: nobody is inside a job, so nobody reads the cell.
        unsafe { *self.job.0.0.get() = Some(job) };
        let number = self.gate.0.load(Ordering::Relaxed) & !(NUMBER - 1);
        // Sequentially consistent, like the sleeper's flag and its next look at the gate.
        self.gate
            .0
            .store(number.wrapping_add(NUMBER) | OPEN, Ordering::SeqCst);
    }

    /// Closes the job to workers that have not joined it and waits for workers that have;
    /// returns a worker's panic.
    pub(super) fn finish(&self) -> Option<Panic> {
        let before = self.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
        let empty = || self.gate.0.load(Ordering::Acquire) & INSIDE == 0;
        if before & INSIDE > 0 && !self.last_chunk.until(empty) {
            *lock(&self.caller) = Some(std::thread::current());
            // The last worker to leave looks for the caller afterwards. So either the worker
            // finds the caller, or the gate is seen empty here.
            while self.gate.0.load(Ordering::SeqCst) & INSIDE > 0 {
                std::thread::park();
            }
            *lock(&self.caller) = None;
        }
        lock(&self.panic).take()
    }

    /// Makes workers end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Returns true while the caller waits asleep.
    #[cfg(test)]
    pub(super) fn caller_sleeps(&self) -> bool {
        lock(&self.caller).is_some()
    }

    /// Runs a worker until the pool ends.
    pub(super) fn work(&self, thread: usize) {
        let mut last = 0;
        while let Some(joined) = self.join(last, &self.asleep[thread - 1]) {
            last = joined;
            // SAFETY: this worker is inside an open job.
            if let Some(job) = unsafe { *self.job.0.0.get() } {
                // SAFETY: the caller keeps the closure alive while this worker is inside.
                let run = AssertUnwindSafe(|| unsafe { (*job)(thread) });
                if let Err(panic) = catch_unwind(run) {
                    *lock(&self.panic) = Some(panic);
                }
            }
            let left = self.gate.0.fetch_sub(1, Ordering::SeqCst);
            // While the gate is open, the caller is at work itself.
            if left & (OPEN | INSIDE) == 1
                && let Some(caller) = &*lock(&self.caller)
            {
                caller.unpark();
            }
        }
    }

    /// Waits for an open job after number `last` and joins it; returns its
    /// number, or `None` when the pool ends.
    fn join(&self, last: u64, asleep: &AtomicBool) -> Option<u64> {
        loop {
            let gate = self.next_gate(last, asleep);
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            let inside = self.gate.0.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if inside.is_ok() {
                return Some(gate & !(NUMBER - 1));
            }
        }
    }

    /// Waits, first spinning, then asleep, until the gate is open with another number than
    /// `last`, or the pool ends.
    fn next_gate(&self, last: u64, asleep: &AtomicBool) -> u64 {
        let is_news = |gate: u64| gate & OPEN > 0 && gate & !(NUMBER - 1) != last;
        let mut gate = 0;
        let found = self.between_jobs.until(|| {
            gate = self.gate.0.load(Ordering::Acquire);
            is_news(gate) || self.stop.load(Ordering::Relaxed)
        });
        if found {
            return gate;
        }
        asleep.store(true, Ordering::SeqCst);
        loop {
            // The caller opens the gate before it looks at the flag: either it
            // sees the flag and wakes this worker, or the gate is open here.
            gate = self.gate.0.load(Ordering::SeqCst);
            if is_news(gate) || self.stop.load(Ordering::SeqCst) {
                asleep.store(false, Ordering::Relaxed);
                return gate;
            }
            std::thread::park();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
