//! A rank's device, opened before anything is loaded.

use lockstep_backend::Groups;
use lockstep_devices::{Device, DeviceFootprint, DeviceOptions};
use lockstep_types::{EngineConfig, Footprint as _};

use super::WorkerError;

/// Opens the device of rank `rank` with `options`, which are that rank's, and sees whether
/// there is room for all that the rank will take of it: what ranks exchange by can't be told
/// before it is there, only bounded, and the cache has been sized by that bound.
///
/// # Errors
/// [`WorkerError::Device`]; [`WorkerError::Exchange`] where it took so much more that what
/// is still to come finds no room.
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
    let (taken, kept) = (backend.exchanged(), charged.exchange);
    let beyond = taken.saturating_sub(kept);
    if beyond == 0 {
        return Ok(backend);
    }
    let all = charged.on_device(config.kv.num_pages * config.kv.page_size);
    if free.is_some_and(|free| free < all.saturating_add(beyond)) {
        let (taken, kept) = (mib(taken), mib(kept));
        return Err(WorkerError::Exchange { taken, kept });
    }
    tracing::warn!(
        taken = mib(taken),
        kept = mib(kept),
        "NCCL has taken more of the GPU than is kept for it; there is room for that"
    );
    Ok(backend)
}

/// Bytes for people.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
