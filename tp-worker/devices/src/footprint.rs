//! What engines take of this machine's devices.

use lockstep_backend::DeviceMemory;
use lockstep_model::rank_memory;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{EngineShape, Footprint, RankMemory};

use crate::{Device, DeviceOptions, OnDevice, Registry};

/// The memory of the device that this machine has, as engines take it.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceFootprint;

impl Footprint for DeviceFootprint {
    fn rank(&self, engine: &EngineShape<'_>, rank: usize) -> RankMemory {
        let memory = device_memory(&DeviceOptions::of_shape(engine));
        rank_memory(memory.as_ref(), engine, rank)
    }
}

/// What the device that this machine has takes of its memory when it is opened
/// with `options`.
pub fn device_memory(options: &DeviceOptions<'_>) -> Box<dyn DeviceMemory> {
    Registry::empty().run(Opened(options))
}

struct Opened<'a>(&'a DeviceOptions<'a>);

impl OnDevice for Opened<'_> {
    type Output = Box<dyn DeviceMemory>;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> Box<dyn DeviceMemory> {
        B::memory(self.0)
    }
}
