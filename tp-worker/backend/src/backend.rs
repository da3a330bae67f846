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
/// All activations are matrices `[tokens, width]`, row-major. A
/// [`Backend::Tensor`] has a fixed capacity in rows, a current row count, and a
/// type in memory that follows from what it [`Holds`], which says too which
/// operation takes what. No operation takes one tensor twice.
///
/// Operations take effect in the order they are called. A device may queue them and
/// return; one that fails then is an error of a later operation that returns errors.
///
/// **Batch invariance.** Every output row depends on its own input row (for attention:
/// its own request) alone, and each element is accumulated in one fixed order, however
/// many rows or requests share the call.
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
    /// A batch where operations read it.
    type Inputs: Send;
    /// What the device has recorded of one model's passes, whose owner is the model's:
    /// see [`Self::pass`]. Fresh ones hold nothing and take no memory.
    type Passes: PassRecords;

    /// For people: "cpu avx512-bf16, 2 threads".
    fn describe(&self) -> String;

    // ---- memory ----
    /// Brings a weight matrix to the device, packed as it keeps those of this role.
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
    /// Allocates a paged cache, of any content; perhaps page by page, as it is written.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn kv_cache(&mut self, shape: &KvShape) -> Result<Self::KvCache, BackendError>;
    /// Allocates room for the batches within `limits`, one at a time.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn inputs(&mut self, limits: &InputLimits) -> Result<Self::Inputs, BackendError>;
    /// Bytes held by a matrix on the device.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    // ---- packed matrices on disk ----
    /// Names the packed form of matrices of `role`, its version included: two of one name,
    /// shape and content have the same bytes. `None`: matrices cannot be saved.
    fn matrix_format(&self, _: MatrixRole) -> Option<String> {
        None
    }
    /// The packed form, for [`Self::restore_matrix`]; empty where there is no format.
    fn matrix_data<'m>(&self, _: &'m Self::Matrix) -> &'m [u8] {
        &[]
    }
    /// Makes a matrix `[rows, cols]` of its packed form. `fill(offset, part)` writes bytes
    /// from `offset` on, of zeros: once for every `unit` bytes, the last part may be shorter,
    /// by several threads at once.
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
    /// The type of [`Holds::Operand`].
    fn operand(&self) -> Dtype {
        Dtype::Float32
    }
    /// Brings a batch to where its pass reads it, in place of the last: one copy, no wait.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    ///
    /// # Panics
    /// Where [`InputLimits::expect`] does, of the limits of `inputs`.
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Self::Inputs) -> Result<(), BackendError>;
    /// The smallest pass that it repeats which holds batches of up to `most` of each of so
    /// many DP ranks, which want all logits, and has the bits of one of just that size.
    fn holding(&self, most: PassKey, dp_ranks: usize, inputs: &Self::Inputs) -> Option<PassKey> {
        let _ = (most, dp_ranks, inputs);
        None
    }
    /// The size of the pass that it repeats for the staged batch, of size `key`, which wants
    /// all logits; `key` where none holds it. Rows behind the batch's hold anything then.
    fn pad(&mut self, key: PassKey, _: &mut Self::Inputs) -> PassKey {
        key
    }
    /// All sizes that it repeats, the largest first: a pass over an empty batch records.
    fn repeated(&self, _: &Self::Inputs) -> Vec<PassKey> {
        Vec::new()
    }
    /// Runs `work`, a pass of the size `key` over the staged batch. The device may record in
    /// `passes` what it asks for and repeat that without calling it. It keeps to this:
    /// * `work` asks for the same operations on the same tensors, matrices and caches
    ///   whenever `key` is the same, and leaves the rest to [`Self::Inputs`].
    /// * It changes nothing on the host that is relied on behind it, no row count or place.
    /// * All passes of one `passes` are those of one `work`: another has fresh ones.
    ///
    /// # Errors
    /// Those of `work`, which leave all that the pass wrote unspecified;
    /// [`BackendError::Unplanned`].
    fn pass(
        &mut self,
        _: &mut Self::Passes,
        _: PassKey,
        work: &mut dyn FnMut(&mut Self) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        work(self)
    }
    /// Memory that passes name was exchanged: what was recorded so far is void.
    fn forget_passes(&mut self) {}
    /// Whether nothing in `passes` is void.
    fn keeps(&self, _: &Self::Passes) -> bool {
        true
    }

    // ---- transformer operations ----
    /// `out[i] = table[tokens[i] - first]`, zero where the token lies outside
    /// this shard (`first..first + table rows`); summing over ranks gives the row.
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
    /// `out = rms_norm(residual)`: how a row-parallel projection ends, with the one
    /// all-reduce that it needs. The bits are those of the operations one by one. `delta`,
    /// of the residual's shape, is space; its content afterwards is unspecified.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone or out of step.
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
    /// [`Self::matmul_add_rms_norm`] where every rank takes rows of its own of the sum, with
    /// the same bits, and only those: `residual` and `out` have as many rows as it takes.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone or out of step.
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
    /// Writes keys and values of every token of `qkv` to its cache cell
    /// ([`Batch::cells`]), then attends: each query sees its request's positions
    /// `0..=own position`, or what its row's mask says; one that sees nothing gets
    /// zeros. `qkv` is `[n, (heads + 2·kv_heads)·head_dim]`, `out` `[n, heads·head_dim]`.
    fn attention(
        &mut self,
        cache: &mut Self::KvCache,
        layer: usize,
        qkv: &Self::Tensor,
        shape: &AttentionShape,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    );
    /// All of an attention block between its projections: norms of heads where there are
    /// any, rotation and [`Self::attention`]. What `qkv` holds then is unspecified.
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
    /// [`Self::silu_mul`] of `x · wᵀ + bias`: how a gated MLP begins. `gate_up` is space.
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
    /// `out[to[i]] = x[from[i]]`, of equal widths; other rows of `out` stay, and so does
    /// its row count. No row is a target twice: a device may copy them in any order.
    fn copy_rows(&mut self, x: &Self::Tensor, from: &[u32], out: &mut Self::Tensor, to: &[u32]);
    /// `out[i, first..first + width] = x[i]` of as many rows; other columns stay.
    fn place_columns(&mut self, x: &Self::Tensor, out: &mut Self::Tensor, first: usize);
    /// `x`, which holds sums, as products read it: `x` itself on a device that keeps both
    /// alike, otherwise a copy in `space`, which holds operands and has the shape of `x`.
    fn as_operand<'a>(
        &mut self,
        x: &'a Self::Tensor,
        space: &'a mut Self::Tensor,
    ) -> &'a Self::Tensor;
    /// Copies cells' keys and values, in all layers, `(from, to)` in turn, bit for bit.
    fn copy_cells(&mut self, cache: &mut Self::KvCache, moves: &[(u32, u32)]);

    // ---- collectives of its data, in the device's own order of operations ----
    /// This rank's number in the group of `axis`, and the group's size.
    fn group(&self, axis: Axis) -> (usize, usize);
    /// Whether this rank is the first of that group, who tells the others.
    fn leads(&self, axis: Axis) -> bool {
        self.group(axis).0 == 0
    }
    /// Sums over the ranks of `axis`, in rank order.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone or out of step.
    fn all_reduce(&mut self, axis: Axis, x: &mut Self::Tensor) -> Result<(), BackendError>;
    /// `out` = rows of all ranks of `axis`, in rank order: rank `r` brings
    /// `counts[r]` rows of its `x`, this one those from `first` on. `counts` is
    /// equal on all ranks, and `out` has `counts.sum()` rows.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone or out of step.
    fn all_gather_rows(
        &mut self,
        axis: Axis,
        x: &Self::Tensor,
        first: usize,
        counts: &[usize],
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;
    /// Who brings ranks' notes to each other, where that is a part of passes.
    fn notes(&mut self) -> Option<&mut dyn ExchangeNotes> {
        None
    }
    /// Who chooses tokens, where the device does, and has whole rows of logits.
    fn chooser(
        &mut self,
    ) -> Option<&mut dyn ChooseTokens<Self::Tensor, Self::Inputs, Self::KvCache>> {
        None
    }
    /// Who drafts chains, likewise.
    fn drafter(
        &mut self,
    ) -> Option<&mut dyn DraftChains<Self::Tensor, Self::Inputs, Self::Vector>> {
        None
    }
    /// Waits for the device, and brings rows of `x` `[n, width]` of every rank of
    /// `axis` to the hosts of those that own them: returns `[own rows, Σ widths]`,
    /// columns in rank order, nothing on a rank that owns none. What is returned lies
    /// in `space`, which grows as needed, or in `x` itself where the host can read it.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone or out of step.
    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a Self::Tensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError>;
    /// Ends a pass that brings nothing to the host: waits for peers' data on its way.
    fn arrive(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    // ---- the host's word with its peers ----
    /// Collectives of the hosts of `axis`: what ranks tell each other in words.
    fn control(&mut self, axis: Axis) -> &mut dyn Collective;
    /// Whether data takes the same group, and words along that are attached there. Else ranks
    /// that differ may wait for ever: what they must agree on, they exchange before a pass.
    fn words_ride_on_data(&self) -> bool {
        false
    }
}
