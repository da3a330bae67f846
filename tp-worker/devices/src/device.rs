//! What a backend is asked before there is one.

use std::path::Path;
use std::time::Duration;

use lockstep_backend::{AttentionShape, Backend, DeviceMemory, Groups};
use lockstep_types::{
    CollectiveBackend, DeviceConfig, DeviceRoom, Dtype, EngineConfig, EngineShape, KvCacheDtype,
    Quantization,
};

use crate::{DeviceError, Finding, Metered, Roofline};

/// A kind of device, known by its backend.
pub trait Device: Backend + Metered + 'static {
    /// The memory of such a device, by its number, where that is not the host's.
    ///
    /// # Errors
    /// [`DeviceError`]: there is none of that number, or something that it needs
    /// is missing.
    fn room(number: usize) -> Result<Option<DeviceRoom>, DeviceError>;

    /// Bytes of that memory that nobody has taken.
    ///
    /// # Errors
    /// Those of [`Self::room`].
    fn free(number: usize) -> Result<Option<u64>, DeviceError>;

    /// Whether such a device attends over heads like these, keys and values of
    /// that type.
    ///
    /// # Errors
    /// [`DeviceError`]: why not, and what to do.
    fn serves(
        options: &DeviceOptions<'_>,
        heads: &AttentionShape,
        cached: KvCacheDtype,
    ) -> Result<(), DeviceError>;

    /// Opens a rank's device; `groups` connect it to its peers.
    ///
    /// # Errors
    /// [`DeviceError`]: threads, cores or kernels that can't be had.
    fn open(options: &DeviceOptions<'_>, groups: impl Into<Groups>) -> Result<Self, DeviceError>;

    /// What such a device takes of the memory, before it is opened.
    fn memory(options: &DeviceOptions<'_>) -> Box<dyn DeviceMemory>;

    /// What `lockstep doctor` says of such devices on this machine.
    fn findings() -> Vec<Finding>;

    /// The name of the kernels that run when those called `name` are asked for,
    /// or nothing is.
    ///
    /// # Errors
    /// [`DeviceError`] where there are none of that name.
    fn kernels(name: Option<&str>) -> Result<&'static str, DeviceError>;

    /// What such devices exchange their data by, from one to the other, found at `path`
    /// or where libraries are looked for.
    ///
    /// # Errors
    /// [`DeviceError`] where there is nothing of that kind.
    fn collectives(path: Option<&Path>) -> Result<String, DeviceError>;

    /// Measures what such a device can do at most, with `options.threads` and
    /// `options.kernels` alone, going through `bytes` of memory, which have to
    /// be several times the last-level cache; `None` where nobody measures it.
    ///
    /// # Errors
    /// [`DeviceError`]: threads, kernels or memory that can't be had.
    fn roofline(options: &DeviceOptions<'_>, bytes: usize)
    -> Result<Option<Roofline>, DeviceError>;

    /// Has `values` write activations, `[rows, width]` of the current rows.
    fn write(&mut self, tensor: &mut Self::Tensor, values: impl FnOnce(&mut [f32]));
}

/// How a rank's device is opened.
#[derive(Debug, Clone, Copy)]
pub struct DeviceOptions<'a> {
    /// The device; a rank's number is already in it.
    pub device: DeviceConfig,
    /// Host threads that compute, or drive the device; at least 1.
    pub threads: usize,
    /// What matrix products compute in.
    pub dtype: Dtype,
    /// What weight matrices are rounded to when they are loaded.
    pub quantization: Quantization,
    /// Cores of the threads, one each; none or an empty list pins nothing.
    /// Configuration refuses them, and threads, for devices other than the host's.
    pub cores: Option<&'a [usize]>,
    /// Name of the kernels to use instead of the fastest that the device runs.
    pub kernels: Option<&'a str>,
    /// Tokens of the passes that it records and repeats, ascending.
    pub graphs: &'a [usize],
    /// Which way data of several ranks goes.
    pub collectives: Collectives<'a>,
    /// Folder for what is made once for a machine and kept, such as compiled
    /// kernels.
    pub folder: Option<&'a Path>,
}

impl<'a> DeviceOptions<'a> {
    /// As the configuration wants every rank's device; not pinned.
    pub fn new(config: &'a EngineConfig) -> Self {
        Self {
            graphs: &config.graphs,
            collectives: Collectives::new(config),
            ..Self::of_shape(&config.shape())
        }
    }

    /// The same, before there is a configuration; nothing is recorded.
    pub fn of_shape(engine: &EngineShape<'a>) -> Self {
        Self {
            device: engine.device,
            threads: engine.threads_per_rank,
            dtype: engine.dtype,
            quantization: engine.quantization,
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

    /// The same, pinned to `cores`.
    #[must_use]
    pub fn pinned(self, cores: Option<&'a [usize]>) -> Self {
        Self { cores, ..self }
    }

    /// The same for the rank that is the `local`-th of its node, keeping what is
    /// made once in `folder`.
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

/// How long ranks may take at the most to join a group of a library of their device's.
const JOINING: Duration = Duration::from_secs(60);

/// Which way ranks' data goes where devices have one of their own; equal on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Collectives<'a> {
    /// The way that is asked for.
    pub backend: CollectiveBackend,
    /// Where its library is; `None`: where libraries are looked for.
    pub library: Option<&'a Path>,
    /// How long ranks may take to join each of their groups.
    pub joining: Duration,
    /// How long data may be on its way.
    pub patience: Duration,
}

impl Default for Collectives<'_> {
    /// With times that only what hangs takes.
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
            // There has to be time left to start without it.
            joining: JOINING.min(Duration::from_secs(timeouts.startup_s) / 4),
            // A rank may be ahead of another by all that comes before serving. Steps that
            // take too long end by the scheduler's watchdog, whichever way data goes.
            patience: Duration::from_secs(timeouts.step_watchdog_s.max(timeouts.loading_s())),
        }
    }
}
