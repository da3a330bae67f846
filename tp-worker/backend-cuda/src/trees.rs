//! Trees of drafts that no host has a part in.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use lockstep_sampling::MassScale;

use crate::compiler::{Compiler, Source};
use crate::context::Context;
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::inputs::{Inputs, TreeLists};
use crate::memory::Buffer;
use crate::module::{Kernel, Module};
use crate::rows::blocks;
use crate::sources;
use crate::stream::Stream;

/// Threads of a block that reads logits or grows a tree, in `tree.cu`.
const THREADS: u32 = 1024;
/// Threads of a block that copies, and its columns.
const COPY_THREADS: u32 = 256;

/// The kernels that grow trees, from one pass of a draft to the next.
pub(crate) struct Trees {
    branch: Kernel<Grow>,
    grow: Kernel<Grow>,
    parents: Kernel<Parents>,
}

/// Trees on their way from the level that was computed last.
pub(crate) struct TreeLevel<'a> {
    /// Of the batch that verifies them.
    pub verified: &'a Inputs,
    /// Of the draft's own passes.
    pub draft: &'a mut Inputs,
    /// Trees at the most.
    pub most: usize,
    /// Branches of each at the most.
    pub branches: usize,
    /// Of the drafts, from 0.
    pub level: usize,
    /// Where rows of the next one are counted.
    pub counts: &'a Buffer<u32>,
}

/// Hidden states that tokens go on from.
pub(crate) struct Sources<'a> {
    /// Of the first pass, and of the one before.
    pub roots: &'a Floats,
    pub outputs: &'a Floats,
    /// Rows of each.
    pub rows: [usize; 2],
    pub width: usize,
}

impl Trees {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// Those of [`Compiler::compile`] and [`Module::load`].
    pub(crate) fn new(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, CudaError> {
        let module = Module::load(context, &compiler.compile(SOURCE, &[])?)?;
        Ok(Self {
            branch: module.kernel("tree_branch", THREADS, 0)?,
            grow: module.kernel("tree_grow", THREADS, 0)?,
            parents: module.kernel("tree_parents", COPY_THREADS, 0)?,
        })
    }

    /// See [`lockstep_backend::DraftTrees::grow`]; `logits` are rows `vocab` wide, of
    /// tokens that the target numbers as `ids` say, if they do.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If there are fewer logits than wanted tokens, fewer tokens than branches, or no
    /// room for the next pass.
    pub(crate) fn grow(
        &self,
        stream: &Stream,
        (logits, vocab, ids): (&Floats, usize, Option<&Buffer<f32>>),
        level: TreeLevel<'_>,
    ) -> Result<(), CudaError> {
        let TreeLevel {
            verified,
            draft,
            most,
            branches,
            level,
            counts,
        } = level;
        // A node has as many children as branches, each of another token. Trees that have
        // more are the host's, which gives a node fewer.
        assert!(
            branches <= vocab,
            "trees of {branches} branches grow on the host where a draft has {vocab} tokens"
        );
        let rows = if level == 0 { most } else { most * branches };
        logits.expect(Element::F32, rows * vocab, "logits to draft from");
        let named = ids.is_none_or(|ids| ids.len() == vocab);
        assert!(named, "every token of a draft has a number of the target's");
        let expanded = (level + 1) * branches;
        draft.expect_wanted(most * expanded, most, most * branches);
        let (limits, lists) = (draft.limits(), TreeLists::of(draft.limits()));
        let mask_words = expanded * expanded.div_ceil(64);
        assert!(
            most <= limits.requests && most <= verified.trees().most(),
            "{most} trees grow where {limits:?} fit"
        );
        assert!(
            mask_words <= lists.mask as usize,
            "masks of {expanded} nodes fit into {limits:?}"
        );
        let parameters = Grow {
            verified: verified.address(),
            inputs: draft.address(),
            logits: logits.address(),
            ids: ids.map_or(0, Buffer::address),
            trees: verified.trees().address(),
            rows: counts.address(),
            level: level as u32,
            most: most as u32,
            vocab: vocab as u32,
            page_size: limits.page_size as u32,
            units: (MassScale::of(vocab).bits() as f32).exp2(),
            mask: lists.mask,
            at: lists.at,
            pad: 0,
        };
        assert!(counts.len() >= 2, "tokens and wanted ones are counted");
        // SAFETY: there are as many logits, and room for all that is laid out; the batch
        // that is staged names trees, tokens and pages that there are.
        unsafe {
            self.branch
                .launch(stream, [rows as u32, 1, 1], &parameters)?;
            self.grow.launch(stream, [most as u32, 1, 1], &parameters)
        }
    }

    /// See [`lockstep_backend::DraftTrees::take_parents`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If `out` has no room for as many rows as the pass has tokens.
    pub(crate) fn take_parents(
        &self,
        stream: &Stream,
        sources: &Sources<'_>,
        verified: &Inputs,
        inputs: &Inputs,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let (most, width) = (inputs.tokens().most(), sources.width);
        let [roots, outputs] = sources.rows;
        sources
            .roots
            .expect(Element::F32, roots * width, "outputs of roots");
        sources
            .outputs
            .expect(Element::F32, outputs * width, "outputs");
        out.expect(Element::F32, most * width, "what tokens go on from");
        let parameters = Parents {
            inputs: inputs.address(),
            trees: verified.trees().address(),
            roots: sources.roots.address(),
            outputs: sources.outputs.address(),
            out: out.address(),
            most: most as u32,
            width: width as u32,
            root_rows: roots as u32,
            output_rows: outputs as u32,
        };
        let grid = [most as u32, blocks(width, COPY_THREADS as usize), 1];
        // SAFETY: rows that are not there are not read, and `out` has room.
        unsafe { self.parents.launch(stream, grid, &parameters) }
    }
}

/// What is compiled.
pub(crate) const SOURCE: &Source = &sources::TREE;

/// `Grow` of `tree.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Grow {
    verified: u64,
    inputs: u64,
    logits: u64,
    ids: u64,
    trees: u64,
    rows: u64,
    level: u32,
    most: u32,
    vocab: u32,
    page_size: u32,
    units: f32,
    mask: u32,
    at: [u32; 7],
    pad: u32,
}

/// `Parents` of `tree.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Parents {
    inputs: u64,
    trees: u64,
    roots: u64,
    outputs: u64,
    out: u64,
    most: u32,
    width: u32,
    root_rows: u32,
    output_rows: u32,
}
