//! A rank's device, opened before anything is loaded.

use lockstep_backend::Groups;
use lockstep_devices::{Device, DeviceFootprint, DeviceOptions};
use lockstep_types::{EngineConfig, Footprint as _, RankMemory};

use super::WorkerError;

/// Opens the device of rank `rank` with that rank's `options`. Checks that the rank's later
/// allocations will fit. The memory of the collectives (NCCL) is only known once they exist.
/// Before, it is only bounded, and the size of the cache follows from that bound.
///
/// # Errors
/// [`WorkerError::Device`]; [`WorkerError::Exchange`] if the collectives took so much more that
/// the rest does not fit.
pub fn open<B: Device>(
    config: &EngineConfig,
    rank: usize,
    options: &DeviceOptions<'_>,
    groups: Groups,
) -> Result<B, WorkerError> {
    let charged = DeviceFootprint.rank(&config.shape(), rank);
    let free = match charged.exchange {
        0 => None,
        _ => B::free(options.device.base_gpu_id)?,
    };
    let backend = B::open(options, groups)?;
    let taken = backend.exchanged();
    let all = charged.on_device(config.kv_pages(), config.kv.page_size);
    if beyond(&charged, all, free, taken)? > 0 {
        tracing::warn!(
            taken = mib(taken),
            kept = mib(charged.exchange),
            "NCCL has taken more of the GPU than is kept for it; there is room for that"
        );
    }
    Ok(backend)
}

/// Returns the bytes that NCCL has taken beyond its own charge. The device had `free` bytes
/// before NCCL, and is still to hold `all` that is charged.
///
/// # Errors
/// [`WorkerError::Exchange`] if the rest does not fit.
fn beyond(
    charged: &RankMemory,
    all: u64,
    free: Option<u64>,
    taken: u64,
) -> Result<u64, WorkerError> {
    let kept = charged.exchange;
    let beyond = taken.saturating_sub(kept);
    let all = all.saturating_add(beyond);
    if beyond > 0 && free.is_some_and(|free| free < all) {
        let (taken, kept) = (mib(taken), mib(kept));
        return Err(WorkerError::Exchange { taken, kept });
    }
    Ok(beyond)
}

/// Formats bytes for people.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use lockstep_types::{KvPages, MemoryUse};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// The room that is charged for gathered logits is not free for NCCL. NCCL's excess over
    /// its own charge counts from the first byte, and is an error from the first byte that does
    /// not fit.
    #[test]
    fn what_nccl_takes_is_held_against_its_own_part_of_the_charge() {
        let charged = RankMemory {
            target: MemoryUse {
                weights: 100 * MIB,
                kv_per_token: 1000,
                ..MemoryUse::default()
            },
            scratch: 10 * MIB,
            exchange: 488 * MIB,
            gathered: 64 * MIB,
            ..RankMemory::default()
        };
        let all = (100 + 10 + 488 + 64) * MIB + 32 * 1000;
        assert_eq!(charged.on_device(KvPages::from(2), 16), all);
        let found = |free, taken| beyond(&charged, all, free, taken).ok();
        for taken in [0, 488 * MIB] {
            // If there is too little for the rest, the rest reports that itself.
            assert_eq!(found(Some(0), taken), Some(0));
        }
        for more in [1, 64 * MIB, 65 * MIB] {
            let taken = 488 * MIB + more;
            assert_eq!(found(None, taken), Some(more));
            assert_eq!(found(Some(all + more), taken), Some(more));
            assert_eq!(found(Some(all + more - 1), taken), None);
        }
    }
}
