//! Tokens chosen from logits, and drafts that they accept.

mod masks;
mod parameters;

use std::ops::Range;
use std::sync::Arc;

use lockstep_sampling::MassScale;

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Compiler, Context, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, blocks};
pub use masks::MaskRoom;
use parameters::{Accept, Choose, Follow, Mask};

/// Columns (`PART`) and threads of a block that reads a part of a row, as in `choose.cu`.
const PART: usize = 16384;
const PART_THREADS: u32 = 512;
/// Threads of a block that chooses one row's token.
const TOKEN_THREADS: u32 = 1024;
/// Words of `State` in `choose.cu`: 1472 cells of three words, and six.
const STATE_WORDS: usize = 3 * 1472 + 6;
/// Requests (`REQUESTS`) and threads of a block of `accept`.
const REQUESTS: usize = 4;
const ACCEPT_THREADS: u32 = 128;

/// Kernels that choose tokens as [`lockstep_sampling::Sampler`] does: equal logits give equal
/// tokens.
///
/// # Panics
/// Operations panic where arrays are too short or of another type.
pub struct SamplingKernels {
    mask: Kernel<Mask>,
    best: Kernel<Choose>,
    weigh: Kernel<Choose>,
    token: Kernel<Choose>,
    accept: Kernel<Accept>,
    follow: Kernel<Follow>,
}

/// Rows of logits in a larger array of rows of `vocab` columns.
pub struct LogitRows<'a> {
    /// The array. It may hold other rows, too.
    pub floats: &'a mut Floats,
    /// Columns of a row: the vocabulary's tokens.
    pub vocab: usize,
    /// Index of the first of these rows.
    pub first: usize,
}

/// State of rows of logits while their tokens are chosen.
pub struct SamplingBuffers {
    rows: usize,
    states: Buffer<u32>,
}

impl SamplingBuffers {
    /// Allocates state for `rows` rows at once, and queues on `stream` the clearing of it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn new(stream: &Stream, rows: usize) -> Result<Self, CudaError> {
        let words = rows.saturating_mul(STATE_WORDS);
        let mut states = Buffer::new(stream.context(), words, "what is known of logits")?;
        // Every pass leaves zeros to the next one.
        stream.fill(&mut states, 0)?;
        Ok(Self { rows, states })
    }

    /// Bytes on the device.
    pub fn bytes(rows: usize) -> u64 {
        4 * (rows as u64).saturating_mul(STATE_WORDS as u64)
    }
}

impl SamplingKernels {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub fn new(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, CudaError> {
        let [choose, accept] = SOURCES.map(|source| -> Result<_, CudaError> {
            Module::load(context, &compiler.compile(source, &[])?)
        });
        let (choose, accept) = (choose?, accept?);
        Ok(Self {
            mask: choose.kernel("choose_mask", PART_THREADS, 0)?,
            best: choose.kernel("choose_best", PART_THREADS, 0)?,
            weigh: choose.kernel("choose_weigh", PART_THREADS, 0)?,
            token: choose.kernel("choose_token", TOKEN_THREADS, 0)?,
            accept: accept.kernel("accept", ACCEPT_THREADS, 0)?,
            follow: accept.kernel("follow", ACCEPT_THREADS, 0)?,
        })
    }

    /// Chooses a token for each of `rows`, which count among all wanted logits. `logits` are
    /// the logits of these rows. How a token is chosen is read from the batch that is staged
    /// when the kernel runs; rows that the batch does not have are skipped. A row that is not
    /// finite gives [`FAILED`](lockstep_backend::FAILED), and the host's rows keep their
    /// logits. The logits of other rows are unspecified afterwards.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn choose(
        &self,
        stream: &Stream,
        logits: LogitRows<'_>,
        rows: Range<usize>,
        inputs: &mut Inputs,
        room: &mut SamplingBuffers,
    ) -> Result<(), CudaError> {
        let (most, vocab) = (rows.len(), logits.vocab);
        let last = logits.first + most;
        let (floats, tokens) = (logits.floats, inputs.chosen().tokens());
        floats.expect(Element::F32, last * vocab, "logits to choose from");
        assert!(
            most <= room.rows,
            "no more rows at once than there is room for"
        );
        assert!(rows.end <= tokens.len(), "every row's token has a place");
        let parameters = Choose {
            logits: floats.address() + 4 * (logits.first * vocab) as u64,
            batch: inputs.address(),
            states: room.states.address(),
            tokens: tokens.address(),
            first: rows.start as u32,
            most: most as u32,
            vocab: vocab as u32,
            units: (MassScale::of(vocab).bits() as f32).exp2(),
        };
        let parts = [blocks(vocab, PART), most as u32, 1];
        // SAFETY: all have room for `most` rows, and tokens up to the last one.
        unsafe {
            self.best.launch(stream, parts, &parameters)?;
            self.weigh.launch(stream, parts, &parameters)?;
            self.token.launch(stream, [most as u32, 1, 1], &parameters)
        }
    }

    /// Verifies the drafts of each request in mode `target`: drafts are accepted as long as
    /// they equal the chosen tokens.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn accept(&self, stream: &Stream, inputs: &mut Inputs) -> Result<(), CudaError> {
        let (requests, chosen) = (inputs.requests().most(), inputs.chosen());
        if requests == 0 {
            return Ok(());
        }
        let parameters = Accept {
            batch: inputs.address(),
            tokens: chosen.tokens().address(),
            words: chosen.words().address(),
            moves: chosen.moves().address(),
            counts: chosen.counts().address(),
            most_requests: requests as u32,
            most: chosen.limits().most as u32,
            nodes: chosen.limits().nodes() as u32,
            pad: 0,
        };
        // SAFETY: there is room for as many requests, and tokens of missing drafts are not
        // read.
        unsafe {
            self.accept
                .launch(stream, [blocks(requests, REQUESTS), 1, 1], &parameters)
        }
    }

    /// Finds the cells to move from the accepted drafts, which another rank may have told. If
    /// the word at `differs` says that ranks differ, every request fails instead.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// `differs`, if given, is the address of a word on the device.
    pub(crate) unsafe fn follow(
        &self,
        stream: &Stream,
        inputs: &mut Inputs,
        differs: Option<u64>,
    ) -> Result<(), CudaError> {
        let (requests, chosen) = (inputs.requests().most(), inputs.chosen());
        if requests == 0 {
            return Ok(());
        }
        let parameters = Follow {
            batch: inputs.address(),
            words: chosen.words().address(),
            moves: chosen.moves().address(),
            counts: chosen.counts().address(),
            differs: differs.unwrap_or(0),
            most_requests: requests as u32,
            most: chosen.limits().most as u32,
        };
        // SAFETY: there is room for as many requests, and cells of missing nodes are not read;
        // the caller answers for `differs`.
        unsafe {
            self.follow
                .launch(stream, [blocks(requests, REQUESTS), 1, 1], &parameters)
        }
    }
}

/// Sources to compile.
pub(crate) const SOURCES: [&Source; 2] = [&kernels::CHOOSE, &kernels::ACCEPT];
