//! The device's limits, measured before and after a run that is held against them.

use anyhow::ensure;
use lockstep_devices::{
    Arithmetic, Collectives, Device, DeviceError, DeviceOptions, Measured, OnDevice, Registry,
    Roofline,
};
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{DeviceConfig, Dtype};
use serde_json::{Value, json};

use super::Ceiling;
use crate::machine;
use crate::report::Table;

/// Fewest bytes of memory that are read, so that no cache holds much of them.
const MIN_MEMORY: usize = 1 << 30;
/// Size of that memory, in last-level caches.
const CACHES: usize = 4;

/// Measures a device of this machine on `threads` threads, with the kernels of that name
/// (the best of the device, if not given), going through `bytes` of memory.
///
/// `None` for devices of a kind without limits to measure.
///
/// # Errors
/// Fails when threads, kernels or memory can't be had.
pub fn measure(
    device: DeviceConfig,
    threads: usize,
    kernels: Option<&str>,
    bytes: usize,
) -> Result<Option<Roofline>, DeviceError> {
    let options = DeviceOptions {
        device,
        threads,
        // Every arithmetic is measured, for weights of any type.
        dtype: Dtype::Float32,
        cores: None,
        kernels,
        graphs: &[],
        collectives: Collectives::default(),
        folder: None,
    };
    Registry::empty().run(options.device.kind, Measurement { options, bytes })
}

struct Measurement<'a> {
    options: DeviceOptions<'a>,
    bytes: usize,
}

impl OnDevice for Measurement<'_> {
    type Output = Result<Option<Roofline>, DeviceError>;

    fn run<B: Device>(self, _drafters: &DrafterRegistry<B>) -> Self::Output {
        B::roofline(&self.options, self.bytes)
    }
}

/// The way of a kernel's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Bytes come from memory; hardly any are written.
    Read,
    /// Bytes come from memory and go back.
    Update,
    /// Bytes stay in a cache, and memory does not bind the kernel.
    Cached,
}

/// Bytes that measurements of memory go through: several times the last-level
/// cache.
///
/// # Errors
/// Fails when that is more than half of the memory that is free.
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

/// Limits before and after a run. Shared machines drift, so a kernel is held against the
/// higher figure.
pub struct Drift {
    before: Roofline,
    after: Roofline,
}

impl Drift {
    /// Joins two measurements of the same threads and instructions; `None` if either is
    /// missing.
    pub fn new(before: Option<Roofline>, after: Option<Roofline>) -> Option<Self> {
        let (before, after) = before.zip(after)?;
        Some(Self { before, after })
    }

    /// The limits of work with bytes that travel as `traffic`, computed in the best of
    /// `arithmetics`.
    pub fn ceiling(&self, traffic: Traffic, arithmetics: &[Arithmetic]) -> Ceiling {
        let both = [&self.before, &self.after];
        let higher = |of: fn(&Roofline) -> f64| both.map(of).into_iter().reduce(f64::max);
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

    /// All limits, before and after, as a table.
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
    use anyhow::Context as _;
    use lockstep_types::DeviceKind;

    use super::*;

    #[test]
    fn a_gpu_is_not_held_against_the_cores() -> anyhow::Result<()> {
        let gpu = DeviceConfig {
            kind: DeviceKind::Cuda,
            base_gpu_id: 0,
            gpu_id_step: 1,
        };
        assert_eq!(measure(gpu, 1, None, 1 << 20)?, None);
        Ok(())
    }

    #[test]
    fn a_kernel_is_held_against_the_higher_figure() -> anyhow::Result<()> {
        let limits = || measure(DeviceConfig::default(), 1, Some("scalar"), 1 << 20);
        let drift = Drift::new(limits()?, limits()?).context("cores are measured")?;
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
