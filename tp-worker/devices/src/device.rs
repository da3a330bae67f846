//! Questions about a kind of device, answered before a device is opened.

use std::path::Path;
use std::time::Duration;

use lockstep_backend::{AttentionShape, Backend, DeviceMemory, ExpertsShape, Groups};
use lockstep_types::{
    CollectiveBackend, DeviceConfig, DeviceRoom, Dtype, EngineConfig, EngineShape, KvCacheDtype,
    ModelConfig,
};

use crate::{DeviceError, Finding, Metered, Roofline};

/// A kind of device, identified by its backend.
pub trait Device: Backend + Metered + 'static {
    /// Returns true if this machine has a device of this kind, even one that can't be used.
    fn exists() -> bool;

    /// Returns the memory of device `number`; `None` if the device uses the host's memory.
    ///
    /// # Errors
    /// [`DeviceError`] if there is no device of that number, or if a part that it needs is
    /// missing.
    fn room(number: usize) -> Result<Option<DeviceRoom>, DeviceError>;

    /// Returns the free bytes of that memory.
    ///
    /// # Errors
    /// The errors of [`Self::room`].
    fn free(number: usize) -> Result<Option<u64>, DeviceError>;

    /// Checks that a device of this kind can attend over these heads, with keys and values of
    /// type `cached`.
    ///
    /// # Errors
    /// [`DeviceError`] with the reason why it can't, and the remedy.
    fn serves(
        options: &DeviceOptions<'_>,
        heads: &AttentionShape,
        cached: KvCacheDtype,
    ) -> Result<(), DeviceError>;

    /// Checks that a device of this kind can run such a mixture of experts.
    ///
    /// # Errors
    /// [`DeviceError`] with the reason why it can't, and the remedy.
    fn serves_experts(experts: &ExpertsShape) -> Result<(), DeviceError>;

    /// Checks that a device of this kind has the operations of the layers of `model`, beside those
    /// that the other checks ask for.
    ///
    /// # Errors
    /// [`DeviceError`] with the reason why it hasn't, and the remedy.
    fn serves_layers(model: &ModelConfig) -> Result<(), DeviceError>;

    /// Opens a rank's device; `groups` connect it to its peers.
    ///
    /// # Errors
    /// [`DeviceError`] if threads, cores or kernels can't be had.
    fn open(options: &DeviceOptions<'_>, groups: impl Into<Groups>) -> Result<Self, DeviceError>;

    /// Returns the memory that a device of this kind will take, before the device is opened.
    fn memory(options: &DeviceOptions<'_>) -> Box<dyn DeviceMemory>;

    /// Returns the lines of `lockstep doctor` about devices of this kind on this machine.
    fn findings() -> Vec<Finding>;

    /// Returns the name of the kernels that run if kernels `name` are asked for, or none are.
    ///
    /// # Errors
    /// [`DeviceError`] if there are no kernels of that name.
    fn kernels(name: Option<&str>) -> Result<&'static str, DeviceError>;

    /// Describes the library through which devices of this kind exchange data. The library is
    /// at `path`, or without one in the usual places.
    ///
    /// # Errors
    /// [`DeviceError`] if there is no such library.
    fn collectives(path: Option<&Path>) -> Result<String, DeviceError>;

    /// Measures the limits of a device of this kind, using only `options.threads` and
    /// `options.kernels`. The measurement goes through `bytes` of memory, which must be several
    /// times the last-level cache. `None` if this kind of device is not measured.
    ///
    /// # Errors
    /// [`DeviceError`] if threads, kernels or memory can't be had.
    fn roofline(options: &DeviceOptions<'_>, bytes: usize)
    -> Result<Option<Roofline>, DeviceError>;

    /// Calls `values` to write activations, `[rows, width]` of the current rows.
    fn write(&mut self, tensor: &mut Self::Tensor, values: impl FnOnce(&mut [f32]));
}

/// Options with which a rank's device is opened.
#[derive(Debug, Clone, Copy)]
pub struct DeviceOptions<'a> {
    /// The device. The rank's number is already applied.
    pub device: DeviceConfig,
    /// Number of host threads that compute, or that drive the device; at least 1.
    pub threads: usize,
    /// Type that matrix products compute in.
    pub dtype: Dtype,
    /// Cores of the threads, one each. `None` or an empty list pins no thread. Configuration
    /// refuses cores, and threads, for devices other than the host's.
    pub cores: Option<&'a [usize]>,
    /// Name of the kernels to use instead of the fastest ones that the device runs.
    pub kernels: Option<&'a str>,
    /// Numbers of tokens of the passes that the device records and repeats, ascending.
    pub graphs: &'a [usize],
    /// The way in which data of several ranks goes.
    pub collectives: Collectives<'a>,
    /// Folder for files that are made once for a machine and kept, such as compiled kernels.
    pub folder: Option<&'a Path>,
}

impl<'a> DeviceOptions<'a> {
    /// Makes the options of every rank's device by the configuration; threads are not pinned.
    pub fn new(config: &'a EngineConfig) -> Self {
        Self {
            graphs: &config.graphs,
            collectives: Collectives::new(config),
            ..Self::of_shape(&config.shape())
        }
    }

    /// Makes the options before there is a configuration. Nothing is recorded.
    pub fn of_shape(engine: &EngineShape<'a>) -> Self {
        Self {
            device: engine.device,
            threads: engine.threads_per_rank,
            dtype: engine.dtype,
            cores: None,
            kernels: engine.isa,
            graphs: &[],
            collectives: Collectives {
                backend: engine.collectives,
                ..Collectives::default()
            },
            folder: None,
        }
    }

    /// Returns the options with threads pinned to `cores`.
    #[must_use]
    pub fn pinned(self, cores: Option<&'a [usize]>) -> Self {
        Self { cores, ..self }
    }

    /// Returns the options of the `local`-th rank of its node. Files that are made once are
    /// kept in `folder`.
    #[must_use]
    pub fn of_rank<'b>(self, local: usize, folder: Option<&'b Path>) -> DeviceOptions<'b>
    where
        'a: 'b,
    {
        let mut device = self.device;
        device.base_gpu_id = device.of_rank(local);
        DeviceOptions {
            device,
            folder,
            ..self
        }
    }
}

/// Most time for ranks to join a group of the device's library.
const JOINING: Duration = Duration::from_secs(60);

/// The way in which ranks' data goes, if devices have a way of their own. Equal on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Collectives<'a> {
    /// The configured way.
    pub backend: CollectiveBackend,
    /// Path of the way's library; `None` for the usual places.
    pub library: Option<&'a Path>,
    /// Most time for ranks to join each of their groups.
    pub joining: Duration,
    /// Most time for data to be under way.
    pub patience: Duration,
}

impl Default for Collectives<'_> {
    /// Times that only a hang exceeds.
    fn default() -> Self {
        Self {
            backend: CollectiveBackend::Auto,
            library: None,
            joining: JOINING,
            patience: Duration::from_secs(300),
        }
    }
}

impl<'a> Collectives<'a> {
    fn new(config: &'a EngineConfig) -> Self {
        let (own, timeouts) = (&config.parallel.collectives, &config.timeouts);
        Self {
            backend: own.backend,
            library: own.nccl.as_deref(),
            // There has to be time left to start without the library.
            joining: JOINING.min(Duration::from_secs(timeouts.startup_s) / 4),
            // A rank may be ahead of another by all work before serving. Steps that take too
            // long end by the scheduler's watchdog, whichever way data goes.
            patience: Duration::from_secs(timeouts.step_watchdog_s.max(timeouts.loading_s())),
        }
    }
}
