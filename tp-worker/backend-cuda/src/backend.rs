//! [`Backend`] on one GPU: shape checks around the operations.

mod attend;
mod choose;
mod collectives;
mod draft;
mod load;
mod measure;
mod moves;
mod notes;
mod operations;
mod passes;
mod products;

use std::path::PathBuf;

use lockstep_backend::Groups;
use lockstep_types::{Dtype, Quantization};

use crate::chains::Chains;
use crate::compiler::Compiler;
use crate::context::Context;
use crate::error::CudaError;
use crate::floats::Element;
use crate::lists::Lists;
use crate::meter::Meter;
use crate::nccl::CollectiveOptions;
use crate::notes::NoteRoom;
use crate::operations::Operations;
use crate::planes::Planes;
use crate::products::Products;
use crate::random::Random;
use crate::recorded::{Ledger, Recorded};
use crate::stopwatch::Stopwatch;
use crate::stream::Stream;
use crate::tensor::CudaTensor;
use crate::trees::Trees;
use crate::weights::Uploads;
use attend::Kernels;
pub(crate) use choose::Chooser;
pub use passes::CudaPasses;

/// Settings of a [`CudaBackend`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// The GPU, counted from 0 as the driver counts.
    pub ordinal: usize,
    /// What weights are held and multiplied in; sums are f32.
    pub dtype: Dtype,
    /// What weight matrices are rounded to: nothing.
    pub quantization: Quantization,
    /// Where compiled kernels are kept; without a folder they are compiled at
    /// every start.
    pub kernels: Option<PathBuf>,
    /// Tokens of the passes that are recorded as graphs and repeated, ascending;
    /// none: nothing is. One graph serves whatever has no more tokens, so that one
    /// family of them serves every depth of drafts.
    pub graphs: Vec<usize>,
    /// Which way data of several ranks goes.
    pub collectives: CollectiveOptions,
}

/// One rank on one GPU, which others may share.
///
/// Operations queue work and return, but for collectives that go by way of the
/// host, which waits for the device. What failed is told by the next one that
/// returns a result, [`lockstep_backend::Backend::gather_to_host`] at the latest.
///
/// # Panics
/// Operations panic when tensors have shapes or types that don't fit together.
pub struct CudaBackend {
    operand: Element,
    operations: Operations,
    products: Products,
    attention: Vec<Kernels>,
    chooser: Chooser,
    chains: Chains,
    trees: Trees,
    lists: Lists,
    uploads: Uploads,
    /// For weights that nobody trained, once some were asked for.
    random: Option<Random>,
    exchange: Planes,
    /// What ranks note as a pass begins, once it is known what that is.
    notes: Option<NoteRoom>,
    compiler: Compiler,
    stream: Stream,
    /// See [`CudaOptions::graphs`].
    graphs: Vec<usize>,
    /// Of drafts, where the driver tells times.
    stopwatch: Option<Stopwatch>,
    /// For benchmarks.
    meter: Option<Meter>,
    /// What recorded passes take.
    ledger: Ledger,
    /// How often memory that recorded passes name was exchanged for other.
    rooms: u64,
    /// See [`Self::check_repetitions`].
    checks: bool,
    /// The first operation that failed and returned nothing.
    failed: Option<CudaError>,
}

impl CudaBackend {
    /// Opens the GPU and compiles the kernels that every model needs. All ranks of
    /// `groups` call it together, with the same [`CudaOptions::collectives`].
    ///
    /// # Errors
    /// [`CudaError`]: what is missing or too old, or an option that GPUs don't
    /// serve.
    pub fn new(options: &CudaOptions, groups: impl Into<Groups>) -> Result<Self, CudaError> {
        if options.quantization != Quantization::None {
            return Err(CudaError::Unsupported(
                "weights in 8 or 4 bits are not served on GPUs: leave --quantization out, or give --device cpu"
                    .to_owned(),
            ));
        }
        let context = Context::open(options.ordinal)?;
        let compiler = Compiler::new(context.gpu(), options.kernels.as_deref())?;
        let operand = Element::of(options.dtype);
        let mut stream = Stream::new(&context)?;
        let exchange = Planes::new(&mut stream, groups.into(), &options.collectives)?;
        Ok(Self {
            operand,
            operations: Operations::new(&context, &compiler, operand)?,
            products: Products::new(&context, &compiler, operand)?,
            attention: Vec::new(),
            chooser: Chooser::new(&stream, &compiler)?,
            chains: Chains::new(&context, &compiler)?,
            trees: Trees::new(&context, &compiler)?,
            lists: Lists::new(&context)?,
            uploads: Uploads::new(&context)?,
            random: None,
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

    /// See [`lockstep_backend::Backend::describe`].
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

    /// What the passes that are recorded now were seen to take.
    pub fn recorded(&self) -> Recorded {
        self.ledger.sum()
    }

    /// Bytes of the GPU's memory that ranks' own way to each other was seen to take, where
    /// their data goes from GPU to GPU.
    pub fn exchanged(&self) -> u64 {
        self.exchange.taken()
    }

    /// Writes the current rows of `tensor`, in its type, and waits. What fails is
    /// told as with operations.
    ///
    /// # Panics
    /// If there are more or fewer values.
    pub fn upload(&mut self, tensor: &mut CudaTensor, values: &[f32]) {
        assert!(
            values.len() == tensor.rows() * tensor.width(),
            "a value for each element of the current rows"
        );
        // Rows that are not current hold anything.
        let mut all = values.to_vec();
        all.resize(tensor.floats.len(), 0.0);
        let done = tensor.floats.upload(&self.stream, &all);
        self.keep(done);
    }

    /// Keeps what failed for the next operation that can say so.
    fn keep(&mut self, done: Result<(), CudaError>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }

    /// What has failed since the last time.
    fn failures(&mut self) -> Result<(), CudaError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}
