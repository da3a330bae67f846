//! Limits of this machine, measured with the kernels' own threads.
//!
//! A kernel's speed says little until it stands beside the limit that bounds it: the speed
//! at which these threads read memory, and the speed at which they multiply (Williams,
//! Waterman & Patterson, "Roofline", CACM 52(4), 2009). Shared machines drift within
//! minutes, so limits are measured in the same run as the kernels.

mod clock;
mod peak;
mod read;
mod update;
mod ways;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockstep_backend::BackendError;

use crate::isa::Isa;
use crate::options::CpuError;
use crate::pool::Pool;

pub use clock::Clock;
pub use peak::Arithmetic;

/// Rounds that are measured for a median.
const ROUNDS: usize = 9;
/// Most calls of the pool in a round of [`Meter::barrier`].
const BARRIERS: u32 = 500;
/// Time after which a round of [`Meter::barrier`] makes no more calls.
const BARRIER_ROUND: Duration = Duration::from_millis(10);
/// Pieces of each thread's work, so that threads can help one that is disturbed, as in
/// kernels.
const PIECES: usize = 32;

/// Threads that measure limits.
pub struct Meter {
    pool: Pool,
    clock: Clock,
}

/// Several measurements of one limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The middle measurement.
    pub median: f64,
    /// The lowest measurement.
    pub low: f64,
    /// The highest measurement.
    pub high: f64,
    /// The way in which the best figure was reached, for people.
    pub method: String,
}

impl Measured {
    /// Sums up at least one value.
    fn of(mut values: Vec<f64>, method: impl Into<String>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            median: values[values.len() / 2],
            low: values[0],
            high: values[values.len() - 1],
            method: method.into(),
        }
    }
}

impl Meter {
    /// Starts `threads` threads (at least 1, with the caller), pinned to the cores of `pin`,
    /// if given, like a backend's threads.
    ///
    /// # Errors
    /// [`CpuError`] when there are no threads or they can't be started.
    pub fn new(threads: usize, pin: Option<&[usize]>) -> Result<Self, CpuError> {
        if threads == 0 {
            return Err(CpuError::NoThreads);
        }
        Ok(Self {
            pool: Pool::new(threads, pin, false)?,
            clock: Clock::for_threads(threads),
        })
    }

    /// Bytes per second that all threads read together from `bytes` of memory, which have to
    /// be several times the last-level cache.
    ///
    /// Takes the best of several ways: one to sixteen streams per thread, with and without
    /// software prefetch into either cache at several distances. Each way is tried, and the
    /// most promising ones are measured alternately.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn read_bandwidth(&mut self, bytes: usize) -> Result<Measured, BackendError> {
        read::bandwidth(&mut self.pool, self.clock, bytes)
    }

    /// Bytes per second that all threads read and write together over `bytes` of memory,
    /// half reads and half writes. Takes the better of changing lines in place and of
    /// copying.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn update_bandwidth(&mut self, bytes: usize) -> Result<Measured, BackendError> {
        update::bandwidth(&mut self.pool, self.clock, bytes)
    }

    /// Operations per second (a multiplication and an addition are two) of all
    /// threads on registers alone; `None` where `isa` lacks the instruction.
    pub fn compute_peak(&mut self, arithmetic: Arithmetic, isa: Isa) -> Option<Measured> {
        peak::measure(&mut self.pool, self.clock, arithmetic, isa)
    }

    /// Seconds until all threads have begun a job and ended it. Kernels need not wait for
    /// threads that come late, so they are faster than this where there is little to do.
    pub fn barrier(&mut self) -> Measured {
        let threads = self.pool.threads();
        let mut round = || {
            // Wall time, even where one thread alone is measured by its own time.
            let start = Instant::now();
            let mut calls = 0;
            loop {
                let begun = AtomicUsize::new(0);
                // A thread that waits here takes no other's share: all come.
                self.pool.run(|_| {
                    begun.fetch_add(1, Ordering::AcqRel);
                    let mut spins = 0;
                    while begun.load(Ordering::Acquire) < threads {
                        spins += 1;
                        match spins % 1_000 {
                            0 => std::thread::yield_now(),
                            _ => std::hint::spin_loop(),
                        }
                    }
                });
                calls += 1;
                let took = start.elapsed();
                if calls == BARRIERS || took > BARRIER_ROUND {
                    return took.as_secs_f64() / f64::from(calls);
                }
            }
        };
        round();
        Measured::of((0..ROUNDS).map(|_| round()).collect(), "all threads meet")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(measured: &Measured) {
        assert!(measured.low > 0.0, "{measured:?}");
        assert!(measured.high.is_finite(), "{measured:?}");
        assert!((measured.low..=measured.high).contains(&measured.median));
        assert!(!measured.method.is_empty());
    }

    #[test]
    fn limits_are_positive_and_finite() {
        for threads in [1, 2] {
            let mut meter = Meter::new(threads, None).unwrap();
            check(&meter.read_bandwidth(3 << 20).unwrap());
            check(&meter.update_bandwidth(3 << 20).unwrap());
            check(&meter.barrier());
        }
    }

    #[test]
    fn every_instruction_set_multiplies_and_some_have_dot_products() {
        let mut meter = Meter::new(1, None).unwrap();
        for isa in Isa::available() {
            check(&meter.compute_peak(Arithmetic::F32Fma, isa).unwrap());
        }
        if Isa::AmxEmulated.is_available() {
            // The limits of the emulation are those of the instructions that it runs.
            for arithmetic in Arithmetic::ALL {
                let [emulated, vectors] = [Isa::AmxEmulated, Isa::AmxEmulated.vectors()]
                    .map(|isa| meter.compute_peak(arithmetic, isa).map(|peak| peak.method));
                assert_eq!(emulated, vectors);
            }
        }
        assert_ne!(Isa::widest(), Isa::AmxEmulated);
        let has = |arithmetic, isa: Isa, meter: &mut Meter| {
            let peak = meter.compute_peak(arithmetic, isa);
            peak.iter().for_each(check);
            peak.is_some()
        };
        assert!(!has(Arithmetic::Bf16Dot, Isa::Scalar, &mut meter));
        assert!(!has(Arithmetic::Int8Dot, Isa::Scalar, &mut meter));
        let bf16 = Isa::Avx512Bf16.is_available();
        assert_eq!(has(Arithmetic::Bf16Dot, Isa::Avx512Bf16, &mut meter), bf16);
    }

    #[test]
    fn an_instruction_set_that_is_not_here_is_not_run() {
        let mut meter = Meter::new(1, None).unwrap();
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            for arithmetic in Arithmetic::ALL {
                assert_eq!(meter.compute_peak(arithmetic, isa), None);
            }
        }
    }

    #[test]
    fn no_threads_and_no_memory_are_errors() {
        assert!(matches!(Meter::new(0, None), Err(CpuError::NoThreads)));
        let mut meter = Meter::new(1, None).unwrap();
        assert!(meter.read_bandwidth(usize::MAX / 2).is_err());
        assert!(meter.update_bandwidth(usize::MAX / 2).is_err());
    }
}
