//! Memory that ranks take, by kind.

use std::path::Path;

use crate::{AdapterLimits, CollectiveBackend, DeviceConfig, DeviceKind, DeviceRoom};
use crate::{Dtype, EngineConfig, KvCacheDtype, KvPages, MatrixRole, ModelConfig};
use crate::{SpeculationConfig, StateLimits, StepLimits, WeightFormat};

/// Properties of an engine that decide over the memory of its ranks, beside the pages of the
/// cache.
#[derive(Debug, Clone, Copy)]
pub struct EngineShape<'a> {
    /// The target.
    pub model: &'a ModelConfig,
    /// Type that weights are held and activations are multiplied in, where nothing is rounded.
    pub dtype: Dtype,
    /// Devices of the ranks.
    pub device: DeviceConfig,
    /// Instruction set of the processor's kernels; `None` = none is named.
    pub isa: Option<&'a str>,
    /// Token counts of the passes that the device records, ascending.
    pub graphs: &'a [usize],
    /// Type of cached keys and values.
    pub kv_dtype: KvCacheDtype,
    /// Number of ranks.
    pub tp_size: usize,
    /// Number of DP ranks that the ranks form.
    pub dp_size: usize,
    /// Number of groups of ranks that experts are split over by number.
    pub ep_size: usize,
    /// Way in which ranks exchange data.
    pub collectives: CollectiveBackend,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// Limits of adapters.
    pub adapters: AdapterLimits,
    /// Algorithm and draft model.
    pub speculation: &'a SpeculationConfig,
    /// Tokens per page of the cache.
    pub page_size: usize,
    /// Limits of the largest step.
    pub step: StepLimits,
}

impl EngineShape<'_> {
    /// Ranks of one DP rank, which split its attention.
    pub fn attn_tp_size(&self) -> usize {
        self.tp_size / self.dp_size
    }

    /// Returns true if `rank` is the lead of its DP rank, which drafts for the DP rank's
    /// requests.
    pub fn leads(&self, rank: usize) -> bool {
        rank.is_multiple_of(self.attn_tp_size())
    }
}

/// Bytes that a model takes on a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Packed matrices.
    pub weights: u64,
    /// Norms, biases and rotary angles.
    pub vectors: u64,
    /// Cache of one token, in all groups of layers together that keep all positions.
    pub kv_per_token: u64,
    /// Cache of one token, in all groups of layers with sliding windows together.
    pub kv_window_per_token: u64,
    /// One state of all recurrent layers: see [`crate::StateLimits`].
    pub state: u64,
    /// Record of one node in all recurrent layers.
    pub record: u64,
    /// Activations of the largest pass.
    pub activations: u64,
    /// Memory on the host: logits and distributions of drafts.
    pub host: u64,
}

/// Bytes that a rank takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankMemory {
    /// Memory of the target.
    pub target: MemoryUse,
    /// Memory of drafting beside the target, with the drafter's keys and values; zero on ranks
    /// that do not draft.
    pub draft: MemoryUse,
    /// Working memory of operations, for target and draft in turn.
    pub scratch: u64,
    /// Memory reserved for the passes of target and draft that the device records.
    pub graphs: u64,
    /// Memory of the library of the devices' own collectives, taken before anything else is
    /// allocated; zero if ranks exchange data in another way.
    pub exchange: u64,
    /// Buffer in which logits are gathered by the devices' own collectives.
    pub gathered: u64,
}

/// Memory that an engine takes on its devices. Configuration sizes the cache by it; a device's
/// crate knows the numbers.
pub trait Footprint {
    /// Returns the bytes that rank `rank` takes. The ranks of a DP rank divide the model's
    /// heads.
    fn rank(&self, engine: &EngineShape<'_>, rank: usize) -> RankMemory;

    /// Returns the share of a token's matrix products that all ranks compute together under
    /// data-parallel attention, in 65,536ths. Example: 32,768 is half of the products. The others
    /// run on the `attn_tp_size` ranks of the token's DP rank alone. `attn_tp_size` divides the
    /// model's heads.
    fn shared_part(&self, model: &ModelConfig, attn_tp_size: usize) -> u32;

    /// Returns true if this machine has a device of that kind, even one that can't be used.
    fn exists(&self, kind: DeviceKind) -> bool;

    /// Returns the memory of device `number` of that kind; `None` if it is the host's memory.
    ///
    /// # Errors
    /// Says why there is no such device, or why it can't be used, and what to do.
    fn room(&self, kind: DeviceKind, number: usize) -> Result<Option<DeviceRoom>, String>;

    /// Checks that the engine's device can compute the target and the draft.
    ///
    /// # Errors
    /// Says why it can't, and what to do.
    fn serves(&self, engine: &EngineShape<'_>) -> Result<(), String>;

    /// Checks that devices of that kind hold matrices of `role` in `format`, and multiply with
    /// them. No device is looked at.
    ///
    /// # Errors
    /// The reason why they don't. Example: "GPUs have no quantized weights".
    fn serves_format(
        &self,
        kind: DeviceKind,
        format: WeightFormat,
        role: MatrixRole,
    ) -> Result<(), &'static str>;

    /// Returns the canonical name of the kernels called `name` for such a device, if this
    /// machine runs them.
    ///
    /// # Errors
    /// Says why it can't, and what to do.
    fn kernels(&self, kind: DeviceKind, name: &str) -> Result<&'static str, String>;

    /// Returns name and version of the library by which devices of that kind exchange data,
    /// such as "NCCL 2.28.3". The library is at `path`, or where libraries are looked for.
    ///
    /// # Errors
    /// Says why devices can't exchange data so, and what to do.
    fn collectives(&self, kind: DeviceKind, path: Option<&Path>) -> Result<String, String>;
}

impl RankMemory {
    /// Returns the bytes that the rank takes of its device, with caches of `pages` pages of
    /// `page_size` tokens.
    pub fn on_device(&self, pages: KvPages, page_size: usize) -> u64 {
        let of = |model: &MemoryUse| {
            let cache = model.kv_bytes(pages, page_size);
            (model.fixed() - model.host).saturating_add(cache)
        };
        let rest = [self.scratch, self.graphs, self.exchange, self.gathered];
        let models = [of(&self.target), of(&self.draft)];
        models.into_iter().chain(rest).fold(0, u64::saturating_add)
    }
}

impl MemoryUse {
    /// Returns the bytes of the caches, with `pages` pages of `page_size` tokens.
    pub fn kv_bytes(&self, pages: KvPages, page_size: usize) -> u64 {
        pages.bytes(page_size, self.kv_per_token, self.kv_window_per_token)
    }

    /// Returns the bytes that are taken before the first token: all but the cache.
    pub fn fixed(&self) -> u64 {
        let rest = self.vectors.saturating_add(self.host);
        self.weights
            .saturating_add(self.activations)
            .saturating_add(rest)
    }
}

impl EngineConfig {
    /// Returns the numbers of recurrent states and of records of verified nodes on the ranks of a
    /// DP rank.
    pub fn state_limits(&self) -> StateLimits {
        StateLimits::of_steps(&self.step_limits(), self.kv.states)
    }

    /// Returns the properties that decide over the ranks' memory.
    pub fn shape(&self) -> EngineShape<'_> {
        EngineShape {
            model: &self.model,
            dtype: self.dtype,
            device: self.device,
            isa: self.isa.as_deref(),
            graphs: &self.graphs,
            kv_dtype: self.kv.dtype,
            tp_size: self.parallel.tp_size,
            dp_size: self.parallel.dp_size,
            ep_size: self.parallel.ep_size,
            collectives: self.parallel.collectives.backend,
            threads_per_rank: self.parallel.threads_per_rank,
            adapters: self.adapters,
            speculation: &self.speculation,
            page_size: self.kv.page_size,
            step: self.step_limits(),
        }
    }
}
