//! The operations of one device.

use std::ops::Range;

use lockstep_collective::{Collective, Owners};
use lockstep_types::Dtype;

use crate::made;
use crate::{
    Attend, AttentionShape, Axis, BackendError, Batch, ChooseTokens, DraftChains, ExchangeNotes,
    Holds, HostMatrix, InputLimits, KvShape, Linear, MatrixRole, PassKey, PassRecords,
    RandomMatrix, RmsNorm, RopeTable, RowParallel, Rows, Scatter,
};

/// One device, with one shard of a model, or of several models.
///
/// All activations are matrices `[tokens, width]`, row-major. A [`Backend::Tensor`] has a fixed
/// capacity in rows, a row count, and a type in memory, which follows from its content:
/// [`Holds`] lists the operations for each content. No operation takes one tensor twice.
///
/// Operations take effect in the order of the calls. A device may queue an operation and
/// return. If the operation fails then, a later operation that returns errors returns it.
///
/// **Batch invariance.** Every output row depends only on its own input row (for attention: on
/// its own request). Each element is accumulated in one fixed order, however many rows or
/// requests share the call.
pub trait Backend: Send + Sized {
    /// A weight matrix `[out, in]`, packed for this device.
    type Matrix: Send + Sync;
    /// A vector of f32 (norm weights, biases).
    type Vector: Send + Sync;
    /// Activations.
    type Tensor: Send;
    /// Rotary angles.
    type Rope: Send + Sync;
    /// Paged keys and values of all layers.
    type KvCache: Send;
    /// A batch in the memory that operations read.
    type Inputs: Send;
    /// Recorded passes of one model, owned by the model: see [`Self::pass`]. Fresh ones hold
    /// nothing and take no memory.
    type Passes: PassRecords;

    /// Describes the device for people: "cpu avx512-bf16, 2 threads".
    fn describe(&self) -> String;

    // ---- memory ----
    /// Brings a weight matrix to the device, in the packed form for matrices of this role.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        role: MatrixRole,
    ) -> Result<Self::Matrix, BackendError>;
    /// Makes a weight matrix of random numbers, packed as [`Self::load_matrix`] would.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn random_matrix(
        &mut self,
        matrix: &RandomMatrix,
        role: MatrixRole,
    ) -> Result<Self::Matrix, BackendError> {
        self.load_matrix(&matrix.host(&matrix.numbers()?), role)
    }
    /// Uploads a vector.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn load_vector(&mut self, values: &[f32]) -> Result<Self::Vector, BackendError>;
    /// Uploads rotary angles.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn load_rope(&mut self, table: RopeTable) -> Result<Self::Rope, BackendError>;
    /// Allocates activations `[rows, width]`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn tensor(
        &mut self,
        rows: usize,
        width: usize,
        holds: Holds,
    ) -> Result<Self::Tensor, BackendError>;
    /// Sets the current row count, at most the capacity.
    fn set_rows(&mut self, tensor: &mut Self::Tensor, rows: usize);
    /// Allocates a paged cache, of any content. Pages may be allocated as they are written.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn kv_cache(&mut self, shape: &KvShape) -> Result<Self::KvCache, BackendError>;
    /// Allocates room for batches within `limits`, one at a time.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn inputs(&mut self, limits: &InputLimits) -> Result<Self::Inputs, BackendError>;
    /// Returns the bytes that a matrix takes on the device.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    // ---- packed matrices on disk ----
    /// Names the packed form of matrices of `role`, version included; `None` if matrices cannot
    /// be saved. Matrices of equal name, shape and content have equal bytes.
    fn matrix_format(&self, _: MatrixRole) -> Option<String> {
        None
    }
    /// Returns the packed form, for [`Self::restore_matrix`]; empty if there is no format.
    fn matrix_data<'m>(&self, _: &'m Self::Matrix) -> &'m [u8] {
        &[]
    }
    /// Makes a matrix `[rows, cols]` from its packed form. `fill(offset, part)` writes bytes
    /// from `offset` on, into zeros. Several threads call it, once for every `unit` bytes; the
    /// last part may be shorter.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] without a format.
    fn restore_matrix(
        &mut self,
        rows: usize,
        cols: usize,
        role: MatrixRole,
        unit: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<Self::Matrix, BackendError> {
        let _ = (rows, cols, role, unit, fill);
        let remedy = "this backend's matrices cannot be restored; leave --weight-cache out";
        Err(BackendError::Unsupported(remedy.into()))
    }

    // ---- a pass ----
    /// Returns the type of [`Holds::Operand`].
    fn operand(&self) -> Dtype {
        Dtype::Float32
    }
    /// Brings a batch to where its pass reads it, in place of the last one: one copy, no wait.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    ///
    /// # Panics
    /// Panics where [`InputLimits::expect`] does, for the limits of `inputs`.
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Self::Inputs) -> Result<(), BackendError>;
    /// Returns the smallest recorded pass with room for a batch of at most `most` from each of
    /// `dp_ranks` DP ranks, all logits wanted. `None` if no pass has room, or if padding would
    /// change bits. Example: of passes of 8 and 16 tokens, 11 tokens run in the pass of 16.
    fn holding(&self, most: PassKey, dp_ranks: usize, inputs: &Self::Inputs) -> Option<PassKey> {
        let _ = (most, dp_ranks, inputs);
        None
    }
    /// Returns the size of the recorded pass for the staged batch, of size `key`, which wants
    /// all logits; `key` if none fits. Rows after the batch's rows then hold anything.
    fn pad(&mut self, key: PassKey, _: &mut Self::Inputs) -> PassKey {
        key
    }
    /// Returns all recorded sizes, the largest first. A pass over an empty batch records.
    fn repeated(&self, _: &Self::Inputs) -> Vec<PassKey> {
        Vec::new()
    }
    /// Runs `work`, a pass of the size `key` over the staged batch. The device may record the
    /// operations of `work` in `passes`, and repeat them without calling `work`. So:
    /// * `work` asks for the same operations on the same tensors, matrices and caches whenever
    ///   `key` is the same, and leaves the rest to [`Self::Inputs`].
    /// * `work` changes nothing on the host that later code relies on, no row count or place.
    /// * All passes of one `passes` come from one `work`. Another `work` has fresh ones.
    ///
    /// # Errors
    /// The errors of `work`, which leave all that the pass wrote unspecified;
    /// [`BackendError::Unplanned`].
    fn pass(
        &mut self,
        _: &mut Self::Passes,
        _: PassKey,
        work: &mut dyn FnMut(&mut Self) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        work(self)
    }
    /// Makes all recorded passes void, because memory that they name was replaced.
    fn forget_passes(&mut self) {}
    /// Returns true if nothing in `passes` is void.
    fn keeps(&self, _: &Self::Passes) -> bool {
        true
    }

    // ---- transformer operations ----
    /// `out[i] = table[tokens[i] - first]`, zero if the token lies outside this shard
    /// (`first..first + table rows`). The sum over ranks is the row.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        first: u32,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    );
    /// `out = x · wᵀ (+ bias)`: `[n, in] × [out, in] → [n, out]`.
    fn matmul(
        &mut self,
        x: &Self::Tensor,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Tensor,
    );
    /// `out = x / rms(x) · weight` row by row (Zhang & Sennrich, arXiv:1910.07467).
    fn rms_norm(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    );
    /// `residual += delta`, then `out = rms_norm(residual)`.
    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Tensor,
        delta: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    );
    /// `residual += Σ over ranks of (x · wᵀ + bias)`, added in rank order, then
    /// `out = rms_norm(residual)`. A row-parallel projection ends so, with the one all-reduce
    /// that it needs. The bits are those of the operations one by one. `delta`, of the
    /// residual's shape, is space; its content afterwards is unspecified.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn matmul_add_rms_norm(
        &mut self,
        x: &Self::Tensor,
        w: RowParallel<'_, Self::Matrix, Self::Vector>,
        residual: &mut Self::Tensor,
        delta: &mut Self::Tensor,
        norm: RmsNorm<'_, Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        made::matmul_add_rms_norm(self, x, w, residual, delta, norm, out)
    }
    /// [`Self::matmul_add_rms_norm`] in which every rank takes only rows of its own of the sum,
    /// with the same bits. `residual` and `out` have as many rows as the rank takes.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn matmul_scatter_add_rms_norm(
        &mut self,
        x: &Self::Tensor,
        w: RowParallel<'_, Self::Matrix, Self::Vector>,
        scatter: Scatter<'_, Self::Tensor>,
        residual: &mut Self::Tensor,
        norm: RmsNorm<'_, Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;
    /// RMS norm over each head of `qkv`'s columns `first_head..first_head + heads`, in
    /// place (Qwen3's q and k norms); `weight` has `head_dim` values.
    fn head_norm(
        &mut self,
        qkv: &mut Self::Tensor,
        shape: &AttentionShape,
        heads: Range<usize>,
        weight: &Self::Vector,
        eps: f32,
    );
    /// Rotates queries and keys inside `qkv` by positions, in half-split pairs.
    fn rope(
        &mut self,
        qkv: &mut Self::Tensor,
        shape: &AttentionShape,
        table: &Self::Rope,
        inputs: &Self::Inputs,
    );
    /// Writes keys and values of every token of `qkv` to its cache cell ([`Batch::cells`]),
    /// then attends. Each query sees its request's positions `0..=own position`, or those of
    /// its row's mask; a query that sees nothing gets zeros. `qkv` is
    /// `[n, (heads + 2·kv_heads)·head_dim]`, `out` `[n, heads·head_dim]`.
    fn attention(
        &mut self,
        cache: &mut Self::KvCache,
        layer: usize,
        qkv: &Self::Tensor,
        shape: &AttentionShape,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    );
    /// All of an attention block between its projections: norms of heads if there are any,
    /// rotation, and [`Self::attention`]. The content of `qkv` afterwards is unspecified.
    fn attend(
        &mut self,
        cache: &mut Self::KvCache,
        layer: usize,
        qkv: &mut Self::Tensor,
        op: &Attend<'_, Self::Vector, Self::Rope>,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) {
        made::attend(self, cache, layer, qkv, op, inputs, out);
    }
    /// `out = silu(gate) · up`, where `gate_up` is `[n, 2·m]` with the gate first.
    fn silu_mul(&mut self, gate_up: &Self::Tensor, out: &mut Self::Tensor);
    /// [`Self::silu_mul`] of `x · wᵀ + bias`, the begin of a gated MLP. `gate_up` is space.
    fn gated_matmul(
        &mut self,
        x: &Self::Tensor,
        w: Linear<'_, Self::Matrix, Self::Vector>,
        gate_up: &mut Self::Tensor,
        out: &mut Self::Tensor,
    ) {
        made::gated_matmul(self, x, w, gate_up, out);
    }
    /// `out[i] = x[rows[i]]`.
    fn gather_rows(
        &mut self,
        x: &Self::Tensor,
        rows: Rows<'_, Self::Inputs>,
        out: &mut Self::Tensor,
    );
    /// `out[to[i]] = x[from[i]]`, of equal widths. Other rows of `out` stay, and so does its
    /// row count. No row is a target twice: a device may copy the rows in any order.
    fn copy_rows(&mut self, x: &Self::Tensor, from: &[u32], out: &mut Self::Tensor, to: &[u32]);
    /// `out[i, first..first + width] = x[i]`, of as many rows. Other columns stay.
    fn place_columns(&mut self, x: &Self::Tensor, out: &mut Self::Tensor, first: usize);
    /// Returns `x`, which holds sums, as products read it: `x` itself if the device keeps both
    /// alike, otherwise a copy in `space`, which holds operands and has `x`'s shape.
    fn as_operand<'a>(
        &mut self,
        x: &'a Self::Tensor,
        space: &'a mut Self::Tensor,
    ) -> &'a Self::Tensor;
    /// Copies the keys and values of cells, in all layers, bit for bit: `(from, to)` in turn.
    fn copy_cells(&mut self, cache: &mut Self::KvCache, moves: &[(u32, u32)]);

    // ---- collectives of its data, in the device's own order of operations ----
    /// Returns this rank's number in the group of `axis`, and the group's size.
    fn group(&self, axis: Axis) -> (usize, usize);
    /// Returns true if this rank is the first of the group.
    fn leads(&self, axis: Axis) -> bool {
        self.group(axis).0 == 0
    }
    /// Sums over the ranks of `axis`, in rank order.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn all_reduce(&mut self, axis: Axis, x: &mut Self::Tensor) -> Result<(), BackendError>;
    /// Sets `out` to rows of all ranks of `axis`, in rank order. Rank `r` brings `counts[r]`
    /// rows of its `x`; this rank brings its rows from `first` on. `counts` is equal on all
    /// ranks, and `out` has `counts.sum()` rows.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn all_gather_rows(
        &mut self,
        axis: Axis,
        x: &Self::Tensor,
        first: usize,
        counts: &[usize],
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;
    /// Returns the operations that exchange notes, if notes travel with passes.
    fn notes(&mut self) -> Option<&mut dyn ExchangeNotes> {
        None
    }
    /// Returns the operations that choose tokens, if the device has them and whole logits.
    fn chooser(
        &mut self,
    ) -> Option<&mut dyn ChooseTokens<Self::Tensor, Self::Inputs, Self::KvCache>> {
        None
    }
    /// Returns the operations that draft chains, if the device drafts.
    fn drafter(
        &mut self,
    ) -> Option<&mut dyn DraftChains<Self::Tensor, Self::Inputs, Self::Vector>> {
        None
    }
    /// Waits for the device, and brings rows of `x` `[n, width]` of every rank of `axis` to the
    /// hosts of their owners. Returns `[own rows, Σ widths]`, columns in rank order; nothing on
    /// a rank that owns no rows. The result lies in `space`, which grows as needed, or in `x`
    /// itself if the host can read it.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a Self::Tensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError>;
    /// Ends a pass that brings nothing to the host: waits for data of peers that is under way.
    fn arrive(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    // ---- the host's word with its peers ----
    /// Returns the collectives of the hosts of `axis`, in which ranks exchange words.
    fn control(&mut self, axis: Axis) -> &mut dyn Collective;
    /// Returns true if data takes the same group, along with attached words. Otherwise ranks
    /// that differ may wait for ever, so ranks agree by words before a pass.
    fn words_ride_on_data(&self) -> bool {
        false
    }
}
