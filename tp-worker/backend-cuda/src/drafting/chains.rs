//! Chains of drafts that the device makes without the host.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Compiler, Context, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, Rows};

/// Threads of a block, in `chain.cu`.
const THREADS: u32 = 1024;
/// Blocks that copy a staged batch.
const COPIERS: u32 = 16;

/// The kernels that draft, from one pass of a draft to the next.
pub(crate) struct Chains {
    begin: Kernel<Chain>,
    advance: Kernel<Chain>,
    /// Number of tokens of the level staged last, and number of its wanted tokens.
    rows: Buffer<u32>,
    /// Largest values of both numbers; `None` outside of levels that the device counts.
    most: Option<[usize; 2]>,
}

/// Inputs that drafts are read from and written to.
pub(crate) struct ChainInputs<'a> {
    /// Inputs of the batch that verifies the drafts.
    pub verified: &'a Inputs,
    /// Inputs of the draft's own passes.
    pub draft: &'a mut Inputs,
    /// Largest number of chains.
    pub most: usize,
}

impl Chains {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub(crate) fn new(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, CudaError> {
        let module = Module::load(context, &compiler.compile(SOURCE, &[])?)?;
        Ok(Self {
            begin: module.kernel("chain_begin", THREADS, 0)?,
            advance: module.kernel("chain_advance", THREADS, 0)?,
            rows: Buffer::new(context, 2, "rows of a level")?,
            most: None,
        })
    }

    /// Bytes on the device.
    pub(crate) fn bytes() -> u64 {
        2 * size_of::<u32>() as u64
    }

    /// Rows of an operation that is queued now, at most `rows`. Behind [`Self::advance`], or in
    /// a level of trees, the device counts the rows of the level, so that a level without rows
    /// reads no weights.
    pub(crate) fn rows(&self, rows: usize) -> Rows<'_> {
        match self.most {
            Some([tokens, _]) if tokens == rows => Rows::counted(rows, &self.rows, 0),
            Some([_, wanted]) if wanted == rows => Rows::counted(rows, &self.rows, 1),
            _ => Rows::fixed(rows),
        }
    }

    /// Says that operations from now on belong to a level of trees with at most `tokens`
    /// tokens, of which at most `wanted` are wanted.
    pub(crate) fn level(&mut self, tokens: usize, wanted: usize) {
        self.most = Some([tokens, wanted]);
    }

    /// Device buffer where a level of trees writes its two counts.
    pub(crate) fn counts(&self) -> &Buffer<u32> {
        &self.rows
    }

    /// Says that operations from now on belong to no level.
    pub(crate) fn end(&mut self) {
        self.most = None;
    }

    /// See [`lockstep_backend::DraftChains::begin`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there is no room for `tokens` tokens of the first pass.
    pub(crate) fn begin(
        &mut self,
        stream: &Stream,
        inputs: &mut ChainInputs<'_>,
        tokens: usize,
    ) -> Result<(), CudaError> {
        inputs.draft.expect(tokens, inputs.most);
        assert!(
            inputs.verified.holds_first_for(inputs.draft),
            "{:?} begin where {:?} fit",
            inputs.verified.limits().chain,
            inputs.draft.limits()
        );
        self.most = None;
        let parameters = Chain::new(inputs, &self.rows);
        // SAFETY: the staged words are a batch within the draft's limits.
        unsafe { self.begin.launch(stream, [COPIERS, 1, 1], &parameters) }
    }

    /// See [`lockstep_backend::DraftChains::advance`]. `logits` has rows of `vocab` columns.
    /// `ids`, if given, holds the target's number for each column. Afterwards [`Self::rows`]
    /// gives the rows of the level that was staged.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there are fewer logits than chains.
    pub(crate) fn advance(
        &mut self,
        stream: &Stream,
        (logits, vocab, ids): (&Floats, usize, Option<&Buffer<f32>>),
        level: usize,
        inputs: &mut ChainInputs<'_>,
    ) -> Result<(), CudaError> {
        let most = inputs.most;
        logits.expect(Element::F32, most * vocab, "logits to draft from");
        let named = ids.is_none_or(|ids| ids.len() == vocab);
        assert!(named, "every token of a draft has a number of the target's");
        inputs.draft.expect(most, most);
        let parameters = Chain {
            logits: logits.address(),
            ids: ids.map_or(0, Buffer::address),
            level: level as u32,
            vocab: vocab as u32,
            ..Chain::new(inputs, &self.rows)
        };
        self.level(most, most);
        // SAFETY: there are as many logits; the staged batch names existing chains, tokens and
        // pages, and the pass behind a token has no more tokens than the one before it.
        unsafe {
            self.advance
                .launch(stream, [most as u32, 1, 1], &parameters)
        }
    }
}

/// Source to compile.
pub(crate) const SOURCE: &Source = &kernels::CHAIN;

/// `Chain` of `chain.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Chain {
    verified: u64,
    inputs: u64,
    logits: u64,
    ids: u64,
    rows: u64,
    level: u32,
    most: u32,
    vocab: u32,
    page_size: u32,
}

impl Chain {
    fn new(inputs: &ChainInputs<'_>, rows: &Buffer<u32>) -> Self {
        Self {
            verified: inputs.verified.address(),
            inputs: inputs.draft.address(),
            logits: 0,
            ids: 0,
            rows: rows.address(),
            level: 0,
            most: inputs.most as u32,
            vocab: 0,
            page_size: inputs.draft.limits().page_size as u32,
        }
    }
}
