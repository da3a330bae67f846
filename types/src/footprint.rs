//! Memory that ranks take, by kind.

use std::path::Path;

use crate::{CollectiveBackend, DeviceConfig, DeviceKind, DeviceRoom};
use crate::{Dtype, EngineConfig, KvCacheDtype, ModelConfig, Quantization};
use crate::{SpeculationConfig, StepLimits};

/// What the memory of an engine's ranks depends on, beside the pages of the cache.
#[derive(Debug, Clone, Copy)]
pub struct EngineShape<'a> {
    /// The target.
    pub model: &'a ModelConfig,
    /// Type that weights are held in where they are not quantized.
    pub dtype: Dtype,
    /// What weight matrices are rounded to.
    pub quantization: Quantization,
    /// What ranks compute on.
    pub device: DeviceConfig,
    /// The instruction set of the processor's kernels, where one is named.
    pub isa: Option<&'a str>,
    /// Tokens of the passes that the device records, ascending.
    pub graphs: &'a [usize],
    /// Type of cached keys and values.
    pub kv_dtype: KvCacheDtype,
    /// Ranks.
    pub tp_size: usize,
    /// DP ranks that they form.
    pub dp_size: usize,
    /// Which way data of several ranks goes.
    pub collectives: CollectiveBackend,
    /// Compute threads of each.
    pub threads_per_rank: usize,
    /// What is drafted, and with what.
    pub speculation: &'a SpeculationConfig,
    /// Tokens per page of the cache.
    pub page_size: usize,
    /// The largest step.
    pub step: StepLimits,
}

impl EngineShape<'_> {
    /// Ranks of one DP rank, which split its attention.
    pub fn attn_tp_size(&self) -> usize {
        self.tp_size / self.dp_size
    }

    /// Whether a rank leads a DP rank: it drafts for its requests.
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
    /// Keys and values of one cached token.
    pub kv_per_token: u64,
    /// Activations of the largest pass.
    pub activations: u64,
    /// On the host: logits, distributions of drafts.
    pub host: u64,
}

/// Bytes that a rank takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankMemory {
    /// The target's.
    pub target: MemoryUse,
    /// What drafting takes beside it, with its keys and values; nothing on
    /// ranks that do not draft.
    pub draft: MemoryUse,
    /// Working memory of operations, for target and draft in turn.
    pub scratch: u64,
    /// Reserved for the passes that the device records, of target and draft.
    pub graphs: u64,
    /// What several ranks exchange their data by, where that is the devices' own way: what
    /// its library takes, before anything else is there.
    pub exchange: u64,
    /// Where logits come together that go that way.
    pub gathered: u64,
}

/// What an engine takes of the devices it runs on. Configuration sizes the
/// cache by it; a device's crate knows the numbers.
pub trait Footprint {
    /// Bytes that rank `rank` takes, of a model whose heads the ranks divide.
    fn rank(&self, engine: &EngineShape<'_>, rank: usize) -> RankMemory;

    /// The memory of device `number` of its kind, where that is not the host's.
    ///
    /// # Errors
    /// Why there is no such device, or it can't be used, and what to do.
    fn room(&self, kind: DeviceKind, number: usize) -> Result<Option<DeviceRoom>, String>;

    /// Whether the engine's device can compute its target and its draft.
    ///
    /// # Errors
    /// Why not, and what to do.
    fn serves(&self, engine: &EngineShape<'_>) -> Result<(), String>;

    /// The kernels of that name for such a device, where this machine runs them: their
    /// name as it is written everywhere.
    ///
    /// # Errors
    /// Why not, and what to do.
    fn kernels(&self, kind: DeviceKind, name: &str) -> Result<&'static str, String>;

    /// What devices of that kind exchange their data by, from one to the other, found at
    /// `path` or where libraries are looked for: "NCCL 2.28.3".
    ///
    /// # Errors
    /// Why they can't, and what to do.
    fn collectives(&self, kind: DeviceKind, path: Option<&Path>) -> Result<String, String>;
}

impl RankMemory {
    /// All that it takes of its device, with `cells` places of tokens in the cache.
    pub fn on_device(&self, cells: usize) -> u64 {
        let of = |model: &MemoryUse| {
            let cache = model.kv_per_token.saturating_mul(cells as u64);
            (model.fixed() - model.host).saturating_add(cache)
        };
        let rest = [self.scratch, self.graphs, self.exchange, self.gathered];
        let models = [of(&self.target), of(&self.draft)];
        models.into_iter().chain(rest).fold(0, u64::saturating_add)
    }
}

impl MemoryUse {
    /// All but the cache: what is taken before the first token.
    pub fn fixed(&self) -> u64 {
        let rest = self.vectors.saturating_add(self.host);
        self.weights
            .saturating_add(self.activations)
            .saturating_add(rest)
    }
}

impl EngineConfig {
    /// What its ranks' memory depends on.
    pub fn shape(&self) -> EngineShape<'_> {
        EngineShape {
            model: &self.model,
            dtype: self.dtype,
            quantization: self.quantization,
            device: self.device,
            isa: self.isa.as_deref(),
            graphs: &self.graphs,
            kv_dtype: self.kv.dtype,
            tp_size: self.parallel.tp_size,
            dp_size: self.parallel.dp_size,
            collectives: self.parallel.collectives.backend,
            threads_per_rank: self.parallel.threads_per_rank,
            speculation: &self.speculation,
            page_size: self.kv.page_size,
            step: self.step_limits(),
        }
    }
}
