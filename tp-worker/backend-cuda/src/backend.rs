//! [`Backend`] on one GPU: shape checks around the operations.

mod attend;
mod collectives;
mod draft;
mod ends;
mod experts;
mod latent;
mod load;
mod measure;
mod memory;
mod moves;
mod notes;
mod operations;
mod passes;
mod products;
mod recurrent;
mod sample;

use std::path::PathBuf;
use std::sync::Arc;

use lockstep_backend::Groups;
use lockstep_types::Dtype;

use crate::drafting::{ChainKernels, TreeKernels};
use crate::error::CudaError;
use crate::exchange::{CollectiveOptions, NoteBuffers, RankExchange};
use crate::formats::Loaders;
use crate::ops::{BlockOps, ExpertOps, ExpertProducts, LatentOps, Products, RowwiseOps};
use crate::passes::{Ledger, Lists, Recorded};
use crate::runtime::{Compiler, Context, Meter, Stopwatch, Stream};
use crate::tensors::{CudaTensor, Element, RowsParameter};
use attend::Kernels;
pub use passes::CudaPasses;
use recurrent::RecurrentKernels;
pub(crate) use sample::TokenSampler;

/// Settings of a [`CudaBackend`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// The GPU, counted from 0 as the driver counts.
    pub ordinal: usize,
    /// Type that weights are held and multiplied in; sums are f32.
    pub dtype: Dtype,
    /// Folder where compiled kernels are kept. Without one, kernels are compiled at every
    /// start.
    pub kernels: Option<PathBuf>,
    /// Numbers of tokens of the passes that are recorded as graphs and repeated, ascending. If
    /// empty, nothing is recorded. One graph serves every batch with no more tokens, so one
    /// family of graphs serves every depth of drafts.
    pub graphs: Vec<usize>,
    /// Exchange of data between several ranks: through the host or by NCCL.
    pub collectives: CollectiveOptions,
}

/// One rank on one GPU. Other ranks may share the GPU.
///
/// Operations queue work and return. Only collectives that go by way of the host wait for the
/// device. A failure is reported by the next operation that returns a result, at the latest by
/// [`lockstep_backend::Exchange::gather_to_host`].
///
/// # Panics
/// Operations panic when tensors have shapes or types that don't fit together.
pub struct CudaBackend {
    operand: Element,
    operations: RowwiseOps,
    /// Operations that only some families need; `None` until one is asked for.
    blocks: Option<Arc<BlockOps>>,
    /// Kernels of recurrent layers that were asked for.
    recurrent: RecurrentKernels,
    /// Operations of mixtures of experts; `None` until a mixture is loaded.
    experts: Option<Arc<ExpertOps>>,
    /// Kernels that multiply by experts, for each form of matrices that was loaded.
    expert_products: Vec<Arc<ExpertProducts>>,
    /// Kernels around latent attention, for each type of cache that was asked for.
    latents: Vec<Arc<LatentOps>>,
    /// Tokens of the batch that the last attention or recurrent layer of the pass was for.
    attended: Option<RowsParameter>,
    products: Products,
    attention: Vec<Kernels>,
    sampler: TokenSampler,
    chains: ChainKernels,
    trees: TreeKernels,
    lists: Lists,
    loaders: Loaders,
    exchange: RankExchange,
    /// Notes that ranks exchange as a pass begins; `None` until their shape is known.
    notes: Option<NoteBuffers>,
    compiler: Compiler,
    stream: Stream,
    /// See [`CudaOptions::graphs`].
    graphs: Vec<usize>,
    /// Measures drafting, where the driver tells times.
    stopwatch: Option<Stopwatch>,
    /// Measures memory and operations, for benchmarks.
    meter: Option<Meter>,
    /// Resources that recorded passes take.
    ledger: Ledger,
    /// Number of times that memory named by recorded passes was replaced.
    rooms: u64,
    /// See [`Self::check_repetitions`].
    checks: bool,
    /// The first failure of an operation that returns nothing.
    failed: Option<CudaError>,
}

impl CudaBackend {
    /// Opens the GPU and compiles the kernels that every model needs. All ranks of `groups`
    /// call this together, with equal [`CudaOptions::collectives`].
    ///
    /// # Errors
    /// [`CudaError`]: a library is missing or too old, or GPUs don't serve an option.
    pub fn new(options: &CudaOptions, groups: impl Into<Groups>) -> Result<Self, CudaError> {
        let context = Context::open(options.ordinal)?;
        let compiler = Compiler::new(context.gpu(), options.kernels.as_deref())?;
        let operand = Element::of(options.dtype);
        let mut stream = Stream::new(&context)?;
        let exchange = RankExchange::new(&mut stream, groups.into(), &options.collectives)?;
        Ok(Self {
            operand,
            operations: RowwiseOps::new(&context, &compiler, operand)?,
            blocks: None,
            recurrent: RecurrentKernels::default(),
            experts: None,
            expert_products: Vec::new(),
            latents: Vec::new(),
            attended: None,
            products: Products::new(&context, &compiler, operand)?,
            attention: Vec::new(),
            sampler: TokenSampler::new(&stream, &compiler)?,
            chains: ChainKernels::new(&context, &compiler)?,
            trees: TreeKernels::new(&context, &compiler)?,
            lists: Lists::new(&context)?,
            loaders: Loaders::new(&context)?,
            exchange,
            notes: None,
            compiler,
            stream,
            graphs: options.graphs.clone(),
            stopwatch: Stopwatch::new(&context)?,
            meter: None,
            ledger: Ledger::default(),
            rooms: 0,
            checks: false,
            failed: None,
        })
    }

    /// See [`lockstep_backend::Memory::describe`].
    fn about(&self) -> String {
        let dtype = match self.operand {
            Element::Bf16 => "bf16",
            Element::F32 => "f32",
        };
        let context = self.stream.context();
        let gpu = context.gpu();
        let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        let taken = context.memory().map_or_else(
            |_| String::new(),
            |(free, all)| format!(" with {:.1} of {:.1} GiB taken", gib(all - free), gib(all)),
        );
        let taken = match self.recorded() {
            Recorded { graphs: 0, .. } => taken,
            Recorded { graphs, bytes } => {
                let mib = bytes as f64 / f64::from(1 << 20);
                format!("{taken} ({graphs} recorded passes: {mib:.1} MiB)")
            }
        };
        let (number, name, rest) = (gpu.ordinal(), gpu.name(), gpu.version());
        let way = self.exchange.describe();
        let way = way.map_or_else(String::new, |way| format!(", {way}"));
        format!("cuda {number} {name}{taken}, {rest}, {dtype}{way}")
    }

    /// Resources that the passes recorded now were seen to take.
    pub fn recorded(&self) -> Recorded {
        self.ledger.sum()
    }

    /// Bytes of the GPU's memory that the device-to-device exchange was seen to take. Zero
    /// where ranks exchange through the host.
    pub fn exchanged(&self) -> u64 {
        self.exchange.taken()
    }

    /// Writes the current rows of `tensor`, in its type, and waits. A failure is reported as
    /// with operations.
    ///
    /// # Panics
    /// Panics if there are more or fewer values.
    pub fn upload(&mut self, tensor: &mut CudaTensor, values: &[f32]) {
        assert!(
            values.len() == tensor.rows() * tensor.width(),
            "a value for each element of the current rows"
        );
        // Contents of rows beyond the current ones are unspecified.
        let mut all = values.to_vec();
        all.resize(tensor.floats.len(), 0.0);
        let done = tensor.floats.upload(&self.stream, &all);
        self.keep(done);
    }

    /// Keeps a failure for the next operation that returns a result.
    fn keep(&mut self, done: Result<(), CudaError>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }

    /// Returns the failure kept since the last call, if any.
    fn failures(&mut self) -> Result<(), CudaError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}
