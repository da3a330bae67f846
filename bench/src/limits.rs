//! The machine's limits, measured before and after what is held against them.

use anyhow::{Context as _, ensure};
use lockstep_backend_cpu::Isa;
use lockstep_backend_cpu::roofline::{Arithmetic, Measured, Meter};
use serde_json::{Value, json};

use crate::machine;
use crate::report::Table;
use crate::roofline::Ceiling;

/// Memory that is read at least, so that no cache holds much of it.
const MIN_MEMORY: usize = 1 << 30;
/// How many times the last-level cache that memory is.
const CACHES: usize = 4;

/// One measurement of everything.
pub struct Limits {
    read: Measured,
    update: Measured,
    peaks: Vec<(Arithmetic, Measured)>,
    barrier: Measured,
}

impl Limits {
    /// Measures on `threads` threads, with the instructions of `isa` (the best
    /// this machine has, if not given), reading `bytes` of memory.
    ///
    /// # Errors
    /// When threads or memory can't be had.
    pub fn measure(threads: usize, isa: Option<Isa>, bytes: usize) -> anyhow::Result<Self> {
        let isa = isa
            .or_else(|| Isa::available().next_back())
            .unwrap_or(Isa::Scalar);
        let mut meter = Meter::new(threads, None)?;
        let peak = |arithmetic| Some((arithmetic, meter.compute_peak(arithmetic, isa)?));
        Ok(Self {
            peaks: Arithmetic::ALL.into_iter().filter_map(peak).collect(),
            barrier: meter.barrier(),
            read: meter
                .read_bandwidth(bytes)
                .context("measuring how fast memory is read")?,
            update: meter
                .update_bandwidth(bytes)
                .context("measuring how fast memory is written")?,
        })
    }
}

/// Where a kernel's bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// From memory; hardly any are written.
    Read,
    /// From memory and back.
    Update,
    /// They stay in a cache, and memory does not bind them.
    Cached,
}

/// Bytes that measurements of memory go through: several times the last-level
/// cache.
///
/// # Errors
/// When that is more than half of the memory that is free.
pub fn working_set() -> anyhow::Result<usize> {
    let cache = machine::last_level_cache().unwrap_or(0);
    beyond_caches(cache, machine::available_memory().unwrap_or(u64::MAX))
}

fn beyond_caches(cache: usize, free: u64) -> anyhow::Result<usize> {
    let bytes = MIN_MEMORY.max(cache.saturating_mul(CACHES));
    ensure!(
        bytes as u64 <= free / 2,
        "measuring memory takes {} MiB, several times the last-level cache, and half of the free {} MiB is less: end other programs first",
        bytes >> 20,
        free >> 20
    );
    Ok(bytes)
}

/// Limits before and after a run. Shared machines drift, and a kernel is held
/// against the higher figure.
pub struct Drift {
    before: Limits,
    after: Limits,
}

impl Drift {
    /// Joins two measurements of the same threads and instructions.
    pub fn new(before: Limits, after: Limits) -> Self {
        Self { before, after }
    }

    /// What binds work whose bytes travel as `traffic` and which computes in
    /// the best of `arithmetics`.
    pub fn ceiling(&self, traffic: Traffic, arithmetics: &[Arithmetic]) -> Ceiling {
        let both = [&self.before, &self.after];
        let higher = |of: fn(&Limits) -> f64| both.map(of).into_iter().reduce(f64::max);
        let peaks = both.into_iter().flat_map(|limits| &limits.peaks);
        let peak = peaks
            .filter(|(arithmetic, _)| arithmetics.contains(arithmetic))
            .map(|(_, measured)| measured.median)
            .max_by(f64::total_cmp);
        let bandwidth = match traffic {
            Traffic::Read => higher(|limits| limits.read.median),
            Traffic::Update => higher(|limits| limits.update.median),
            Traffic::Cached => None,
        };
        Ceiling { bandwidth, peak }
    }

    /// All figures for people and programs.
    pub fn table(&self) -> Table {
        let mut table = Table::new(
            "Limits of this machine, before and after the run",
            &[
                "limit",
                "unit",
                "before",
                "low",
                "high",
                "after",
                "after low",
                "after high",
                "how",
            ],
        );
        let mut row = |name: &str, unit: &str, scale: f64, before: &Measured, after: &Measured| {
            let figures = |measured: &Measured| {
                [measured.median, measured.low, measured.high].map(|value| json!(value * scale))
            };
            let mut cells: Vec<Value> = vec![json!(name), json!(unit)];
            cells.extend(figures(before));
            cells.extend(figures(after));
            cells.push(json!(before.method));
            table.row(cells);
        };
        let (before, after) = (&self.before, &self.after);
        row("memory read", "GB/s", 1e-9, &before.read, &after.read);
        row(
            "memory read + write",
            "GB/s",
            1e-9,
            &before.update,
            &after.update,
        );
        for ((arithmetic, before), (_, after)) in before.peaks.iter().zip(&after.peaks) {
            let unit = match arithmetic {
                Arithmetic::Int8Dot => "GOP/s",
                Arithmetic::F32Fma | Arithmetic::Bf16Dot => "GFLOP/s",
            };
            row(&arithmetic.to_string(), unit, 1e-9, before, after);
        }
        row("barrier", "us", 1e6, &before.barrier, &after.barrier);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_held_against_the_higher_figure() -> anyhow::Result<()> {
        let limits = || Limits::measure(1, Some(Isa::Scalar), 1 << 20);
        let drift = Drift::new(limits()?, limits()?);
        let ceiling = drift.ceiling(Traffic::Read, &[Arithmetic::F32Fma, Arithmetic::Int8Dot]);
        let update = drift.ceiling(Traffic::Update, &[Arithmetic::Int8Dot]);
        for measured in [&drift.before, &drift.after] {
            assert!(ceiling.bandwidth >= Some(measured.read.median));
            assert!(ceiling.peak >= Some(measured.peaks[0].1.median));
            assert!(update.bandwidth >= Some(measured.update.median));
        }
        assert_eq!(update.peak, None);
        assert_eq!(drift.ceiling(Traffic::Cached, &[]).bandwidth, None);
        Ok(())
    }

    #[test]
    fn what_is_read_exceeds_the_caches() {
        const GIB: usize = 1 << 30;
        let table = [
            (0, Some(GIB)),
            (32 << 20, Some(GIB)),
            (GIB, Some(4 * GIB)),
            (3 * GIB, None),
        ];
        for (cache, wanted) in table {
            assert_eq!(beyond_caches(cache, 16 << 30).ok(), wanted, "{cache}");
        }
        assert!(beyond_caches(0, 1 << 30).is_err());
    }
}
