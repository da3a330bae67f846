//! Memory that engines take of this machine's devices.

use std::path::Path;

use lockstep_backend::DeviceMemory;
use lockstep_model::{
    Topology, matrix_formats, rank_attentions, rank_experts, rank_memory, shared_part,
};
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{
    DeviceKind, DeviceRoom, EngineShape, Footprint, MatrixRole, ModelConfig, RankMemory,
    WeightFormat,
};

use crate::{Device, DeviceError, DeviceOptions, OnDevice, Registry};

/// Answers of this machine's devices to configuration: memory, heads, kernels, libraries.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceFootprint;

impl Footprint for DeviceFootprint {
    fn rank(&self, engine: &EngineShape<'_>, rank: usize) -> RankMemory {
        let memory = device_memory(&DeviceOptions::of_shape(engine));
        rank_memory(memory.as_ref(), engine, rank)
    }

    fn shared_part(&self, model: &ModelConfig, attn_tp_size: usize) -> u32 {
        shared_part(model, attn_tp_size)
    }

    fn exists(&self, kind: DeviceKind) -> bool {
        Registry::empty().run(kind, Exists)
    }

    fn room(&self, kind: DeviceKind, number: usize) -> Result<Option<DeviceRoom>, String> {
        let room = Registry::empty().run(kind, Room(number));
        room.map_err(|error| error.to_string())
    }

    fn serves(&self, engine: &EngineShape<'_>) -> Result<(), String> {
        let served = Registry::empty().run(engine.device.kind, Serves(engine));
        served.map_err(|error| error.to_string())
    }

    fn serves_format(
        &self,
        kind: DeviceKind,
        format: WeightFormat,
        role: MatrixRole,
    ) -> Result<(), &'static str> {
        Registry::empty().run(kind, ServesFormat(format, role))
    }

    fn kernels(&self, kind: DeviceKind, name: &str) -> Result<&'static str, String> {
        let found = Registry::empty().run(kind, Kernels(name));
        found.map_err(|error| error.to_string())
    }

    fn collectives(&self, kind: DeviceKind, path: Option<&Path>) -> Result<String, String> {
        let found = Registry::empty().run(kind, Collectives(path));
        found.map_err(|error| error.to_string())
    }
}

/// Returns the memory that a device takes when it is opened with `options`.
pub fn device_memory(options: &DeviceOptions<'_>) -> Box<dyn DeviceMemory> {
    Registry::empty().run(options.device.kind, Opened(options))
}

/// Asks if there is any device.
struct Exists;

impl OnDevice for Exists {
    type Output = bool;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> bool {
        B::exists()
    }
}

/// Asks for the memory of the device of that number.
struct Room(usize);

impl OnDevice for Room {
    type Output = Result<Option<DeviceRoom>, DeviceError>;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> Self::Output {
        B::room(self.0)
    }
}

/// Asks for kernels by name.
struct Kernels<'a>(&'a str);

impl OnDevice for Kernels<'_> {
    type Output = Result<&'static str, DeviceError>;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> Self::Output {
        B::kernels(Some(self.0))
    }
}

/// Asks for the library by which devices exchange data.
struct Collectives<'a>(Option<&'a Path>);

impl OnDevice for Collectives<'_> {
    type Output = Result<String, DeviceError>;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> Self::Output {
        B::collectives(self.0)
    }
}

/// Asks if a device serves the matrices and the heads of target and draft.
struct Serves<'a>(&'a EngineShape<'a>);

impl OnDevice for Serves<'_> {
    type Output = Result<(), DeviceError>;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> Self::Output {
        let Self(engine) = self;
        let options = DeviceOptions::of_shape(engine);
        let draft = engine.speculation.draft.as_ref().map(|draft| &draft.model);
        // A draft runs on one rank.
        let models = [(engine.model, engine.attn_tp_size())].into_iter();
        for (model, ranks) in models.chain(draft.map(|draft| (draft, 1))) {
            B::serves_layers(model)?;
            for (format, role) in matrix_formats(model) {
                B::serves_format(format, role).map_err(|why| DeviceError::new(Unserved(why)))?;
            }
            for shape in rank_attentions(model, ranks) {
                B::serves(&options, &shape, engine.kv_dtype)?;
            }
        }
        // The first rank has the most experts; the last one has the thinnest parts.
        let places = [0, engine.tp_size - 1].map(|rank| {
            let place = Topology::new(rank, engine.tp_size, engine.dp_size);
            (engine.model, place.with_experts(engine.ep_size))
        });
        let of_draft = draft.map(|draft| (draft, Topology::alone()));
        for (model, place) in places.into_iter().chain(of_draft) {
            for shape in rank_experts(model, place) {
                B::serves_experts(&shape)?;
            }
        }
        Ok(())
    }
}

/// The reason why a device does not serve a matrix.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unserved(&'static str);

/// Query if a device serves a format for matrices of a role.
struct ServesFormat(WeightFormat, MatrixRole);

impl OnDevice for ServesFormat {
    type Output = Result<(), &'static str>;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> Self::Output {
        let Self(format, role) = self;
        B::serves_format(format, role)
    }
}

struct Opened<'a>(&'a DeviceOptions<'a>);

impl OnDevice for Opened<'_> {
    type Output = Box<dyn DeviceMemory>;

    fn run<B: Device>(self, _: &DrafterRegistry<B>) -> Box<dyn DeviceMemory> {
        B::memory(self.0)
    }
}
