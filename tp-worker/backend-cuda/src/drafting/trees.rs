//! Trees of drafts that the device grows without the host.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use lockstep_sampling::MassScale;

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::{Inputs, TreeLists};
use crate::runtime::{Buffer, Compiler, Context, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, blocks};

/// Threads of a block that reads logits or grows a tree, in `tree.cu`.
const THREADS: u32 = 1024;
/// Threads of a block that copies; each copies one column.
const COPY_THREADS: u32 = 256;

/// The kernels that grow trees, from one pass of a draft to the next.
pub(crate) struct TreeKernels {
    branch: Kernel<Grow>,
    grow: Kernel<Grow>,
    parents: Kernel<Parents>,
}

/// Trees after their last computed level, with the room for the next one.
pub(crate) struct TreeLevel<'a> {
    /// Inputs of the batch that verifies the drafts.
    pub verified: &'a Inputs,
    /// Inputs of the draft's own passes.
    pub draft: &'a mut Inputs,
    /// Largest number of trees.
    pub most: usize,
    /// Largest number of branches of a tree.
    pub branches: usize,
    /// Number of the last computed level, from 0.
    pub level: usize,
    /// Words in which the rows of the next level are counted.
    pub counts: &'a Buffer<u32>,
}

/// Hidden states from which tokens of a pass go on.
pub(crate) struct Sources<'a> {
    /// Outputs of the first pass (`roots`) and of the last pass (`outputs`).
    pub roots: &'a Floats,
    pub outputs: &'a Floats,
    /// Rows of `roots` and of `outputs`.
    pub rows: [usize; 2],
    pub width: usize,
}

impl TreeKernels {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub(crate) fn new(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, CudaError> {
        let module = Module::load(context, &compiler.compile(SOURCE, &[])?)?;
        Ok(Self {
            branch: module.kernel("tree_branch", THREADS, 0)?,
            grow: module.kernel("tree_grow", THREADS, 0)?,
            parents: module.kernel("tree_parents", COPY_THREADS, 0)?,
        })
    }

    /// See [`lockstep_backend::DeviceTreeDrafter::grow`]. `logits` has rows of `vocab` columns.
    /// `ids`, if given, holds the target's number for each column.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there are fewer logits than wanted tokens, fewer columns than branches, or no room
    /// for the next pass.
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
        // A node has as many children as branches, each of another token. The host grows trees
        // with more branches, and gives a node fewer children.
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
        // SAFETY: there are as many logits, and room for all that is laid out; the staged batch
        // names existing trees, tokens and pages.
        unsafe {
            self.branch
                .launch(stream, [rows as u32, 1, 1], &parameters)?;
            self.grow.launch(stream, [most as u32, 1, 1], &parameters)
        }
    }

    /// See [`lockstep_backend::DeviceTreeDrafter::take_parents`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `out` has no room for as many rows as the pass has tokens.
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
        // SAFETY: missing rows are not read, and `out` has room.
        unsafe { self.parents.launch(stream, grid, &parameters) }
    }
}

/// Source to compile.
pub(crate) const SOURCE: &Source = &kernels::TREE;

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
