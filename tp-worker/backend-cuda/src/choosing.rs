//! Tokens from logits, and which drafts they accept.

mod parameters;

use std::ops::Range;
use std::sync::Arc;

use lockstep_sampling::MassScale;

use crate::compiler::{Compiler, Source};
use crate::context::Context;
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::inputs::Inputs;
use crate::memory::Buffer;
use crate::module::{Kernel, Module};
use crate::rows::blocks;
use crate::sources;
use crate::stream::Stream;
use parameters::{Accept, Choose, Follow};

/// Columns and threads of a block that reads a part of a row, in `choose.cu`.
const PART: usize = 16384;
const PART_THREADS: u32 = 512;
/// Threads of a block that chooses a row's token.
const TOKEN_THREADS: u32 = 1024;
/// Words of `State` in `choose.cu`: 1472 cells of three words, and six.
const STATE_WORDS: usize = 3 * 1472 + 6;
/// Requests of a block of `accept`, and its threads.
const REQUESTS: usize = 4;
const ACCEPT_THREADS: u32 = 128;

/// Chooses tokens as [`lockstep_sampling::Sampler`] does: the same ones of the same
/// logits.
///
/// # Panics
/// Operations panic where arrays are too short or of another type.
pub struct Choosing {
    best: Kernel<Choose>,
    weigh: Kernel<Choose>,
    token: Kernel<Choose>,
    accept: Kernel<Accept>,
    follow: Kernel<Follow>,
}

/// Rows of logits, as they lie in an array of rows `vocab` wide.
pub struct LogitRows<'a> {
    /// All of them, and others.
    pub floats: &'a mut Floats,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// The first of these rows.
    pub first: usize,
}

/// What is found out about rows of logits while their tokens are chosen.
pub struct ChoosingRoom {
    rows: usize,
    states: Buffer<u32>,
}

impl ChoosingRoom {
    /// Takes room for so many rows at once, and queues on `stream` what prepares it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn new(stream: &Stream, rows: usize) -> Result<Self, CudaError> {
        let words = rows.saturating_mul(STATE_WORDS);
        let mut states = Buffer::new(stream.context(), words, "what is known of logits")?;
        // Passes leave zeros to the next one.
        stream.fill(&mut states, 0)?;
        Ok(Self { rows, states })
    }

    /// Bytes on the device.
    pub fn bytes(rows: usize) -> u64 {
        4 * (rows as u64).saturating_mul(STATE_WORDS as u64)
    }
}

impl Choosing {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// Those of [`Compiler::compile`] and [`Module::load`].
    pub fn new(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, CudaError> {
        let [choose, accept] = SOURCES.map(|source| -> Result<_, CudaError> {
            Module::load(context, &compiler.compile(source, &[])?)
        });
        let (choose, accept) = (choose?, accept?);
        Ok(Self {
            best: choose.kernel("choose_best", PART_THREADS, 0)?,
            weigh: choose.kernel("choose_weigh", PART_THREADS, 0)?,
            token: choose.kernel("choose_token", TOKEN_THREADS, 0)?,
            accept: accept.kernel("accept", ACCEPT_THREADS, 0)?,
            follow: accept.kernel("follow", ACCEPT_THREADS, 0)?,
        })
    }

    /// Chooses a token from each of `rows` of all wanted logits, which are `logits`, as
    /// the batch says that is staged when it runs; rows that it does not have are left
    /// out. A row that is not finite gives [`FAILED`](lockstep_backend::FAILED), and one
    /// that the host chooses from stays as it is; what is left of the logits of others is
    /// unspecified.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn choose(
        &self,
        stream: &Stream,
        logits: LogitRows<'_>,
        rows: Range<usize>,
        inputs: &mut Inputs,
        room: &mut ChoosingRoom,
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

    /// Verifies what was drafted for each request in mode `target`: its drafts stand
    /// as far as they are the tokens that were chosen.
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
        // SAFETY: there is room for as many requests; tokens of drafts that are not
        // there are not read.
        unsafe {
            self.accept
                .launch(stream, [blocks(requests, REQUESTS), 1, 1], &parameters)
        }
    }

    /// Finds which cells move by what was accepted, which another rank may have told; or
    /// has every request fail, where the word at `differs` says that ranks differ.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// There is a word at `differs`, if anywhere.
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
        // SAFETY: there is room for as many requests, and cells of nodes that are not
        // there are not read; the caller's.
        unsafe {
            self.follow
                .launch(stream, [blocks(requests, REQUESTS), 1, 1], &parameters)
        }
    }
}

/// What is compiled.
pub(crate) const SOURCES: [&Source; 2] = [&sources::CHOOSE, &sources::ACCEPT];
