//! Operations of a transformer.

use std::ops::Range;

use lockstep_types::{Activation, Dtype};

use super::memory::NO_STATES;
use crate::{
    Attend, AttendLatent, AttentionShape, BackendError, BlockEnd, ColumnGroups, CountedKeys,
    DeltaOperands, ExpertSpace, Experts, GatedDelta, LatentSpace, Linear, LogitScaling, Mamba2,
    Mamba2Operands, Memory, RmsNorm, Rows, ShortConvolution, WholeNorms, composed,
};

/// Operations of a transformer on one device, row by row and without its peers.
pub trait Ops: Memory {
    /// Returns the type of [`Holds::Operand`].
    fn operand(&self) -> Dtype {
        Dtype::Float32
    }
    /// `out[i] = table[tokens[i] - first] · scale`, zero if the token lies outside this shard
    /// (`first..first + table rows`). The sum over ranks is the row.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        first: u32,
        scale: f32,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    );
    /// `out = x · wᵀ (+ bias)`: `[n, in] × [out, in] → [n, out]`.
    fn matmul(
        &mut self,
        x: &Self::Tensor,
        w: Linear<'_, Self::Matrix, Self::Vector>,
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
    /// `residual += norm(delta)`, then `out = norm(residual)`, with the norms of `end`. Without a
    /// delta nothing is added.
    fn end_block(
        &mut self,
        residual: &mut Self::Tensor,
        delta: Option<&Self::Tensor>,
        end: BlockEnd<'_, Self::Vector>,
        out: &mut Self::Tensor,
    );
    /// `x = norm(x) + norm(y)`, with `norms` in this order: what two blocks side by side add to the
    /// residual stream. Both are `[n, width]`, as is `space`, whose content afterwards is
    /// unspecified.
    fn join_norms(
        &mut self,
        x: &mut Self::Tensor,
        y: &Self::Tensor,
        norms: [RmsNorm<'_, Self::Vector>; 2],
        width: usize,
        space: &mut Self::Tensor,
    ) {
        composed::join_norms(self, x, y, norms, width, space);
    }
    /// RMS norm over each head of `qkv`'s columns `first_head..first_head + heads`, in
    /// place (Qwen3's q and k norms, Gemma 4's of values); `weight` has `head_dim` values.
    fn head_norm(
        &mut self,
        qkv: &mut Self::Tensor,
        shape: &AttentionShape,
        heads: Range<usize>,
        weight: &Self::Vector,
        eps: f32,
    );
    /// `sums[i] = [Σ q², Σ k²]` over this rank's heads in row `i` of `qkv`, with the key heads that
    /// are `counted`. The sum over ranks is the sum over all heads of the model.
    fn square_sums(
        &mut self,
        qkv: &Self::Tensor,
        shape: &AttentionShape,
        counted: CountedKeys,
        sums: &mut Self::Tensor,
    );
    /// RMS norms over all heads of queries together, and of keys together, in place. `sums` has
    /// the squares of all ranks, as [`Self::square_sums`] leaves them.
    fn whole_norm(
        &mut self,
        qkv: &mut Self::Tensor,
        shape: &AttentionShape,
        sums: &Self::Tensor,
        norms: &WholeNorms<'_, Self::Vector>,
    );
    /// Rotates queries and keys inside `qkv` by positions, in half-split pairs, and scales queries
    /// where the table says so.
    fn rope(
        &mut self,
        qkv: &mut Self::Tensor,
        shape: &AttentionShape,
        table: &Self::Rope,
        inputs: &Self::Inputs,
    );
    /// Writes keys and values of every token of `qkv` to its cell in the cache's group
    /// ([`Batch::cells`]), then attends as layer `layer` of the cache. Each query sees its
    /// request's positions `0..=own position`, or those of its row's mask, and of these the ones
    /// in the window ([`AttentionShape::visible`]); a query that sees nothing gets zeros. `qkv` is
    /// `[n, (heads + 2·kv_heads)·head_dim]`, `out` `[n, heads·head_dim]`. Where the shape only reads
    /// ([`AttentionShape::reads_only`]), `qkv` is `[n, heads·head_dim]`, and nothing is written.
    ///
    /// `sinks` are the sinks `[heads]` of a shape that has some: head `h` weighs each position by
    /// `exp(score) / (Σ exp(scores) + exp(sinks[h]))`. Neither factor nor bound of scores is for
    /// them.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    fn attention(
        &mut self,
        cache: &mut Self::KvCache,
        layer: usize,
        qkv: &Self::Tensor,
        shape: &AttentionShape,
        sinks: Option<&Self::Vector>,
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
        op: &Attend<'_, Self::Matrix, Self::Vector, Self::Rope>,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) {
        composed::attend(self, cache, layer, qkv, op, inputs, out);
    }
    /// [`Self::attend`] of the projections `x · wᵀ + bias`, the begin of an attention block. `qkv`
    /// is space.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    fn matmul_attend(
        &mut self,
        x: &Self::Tensor,
        w: Linear<'_, Self::Matrix, Self::Vector>,
        cache: &mut Self::KvCache,
        layer: usize,
        qkv: &mut Self::Tensor,
        op: &Attend<'_, Self::Matrix, Self::Vector, Self::Rope>,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) {
        self.matmul(x, w, qkv);
        self.attend(cache, layer, qkv, op, inputs, out);
    }
    /// All of a latent attention between its projections (DeepSeek-V2, arXiv:2405.04434). `query`
    /// is `[n, heads·(nope + rotated)]`: the columns of all heads that are not rotated, then those
    /// that are. `cell` is `[n, latent + rotated]`; its latent is normed and the rest rotated, and
    /// so written to the token's cell. Each query sees what [`Self::attention`] shows it. `out` is
    /// `[n, heads·value]`. The content of `query` and `cell` afterwards is unspecified.
    ///
    /// Queries are multiplied by their heads' key matrices, and means of latents by the value
    /// matrices: no key or value of a cached position is ever made. So a token costs the same
    /// work in a prompt, in a draft and alone, and has the same bits.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that do not have the operation.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    fn attend_latent(
        &mut self,
        cache: &mut Self::KvCache,
        layer: usize,
        query: &mut Self::Tensor,
        cell: &mut Self::Tensor,
        op: &AttendLatent<'_, Self::Matrix, Self::Vector, Self::Rope>,
        space: LatentSpace<'_, Self::Tensor>,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (cache, layer, query, cell, op, space, inputs, out);
        let remedy = "this device runs no latent attention; give --device cpu";
        Err(BackendError::Unsupported(remedy.into()))
    }
    /// `out = f(gate) · up` with the activation `f`, where `gate_up` is `[n, 2·m]` with the gate
    /// first.
    fn gate(&mut self, gate_up: &Self::Tensor, activation: Activation, out: &mut Self::Tensor);
    /// [`Self::gate`] of `x · wᵀ + bias`, the begin of a gated MLP. `gate_up` is space.
    fn gated_matmul(
        &mut self,
        x: &Self::Tensor,
        w: Linear<'_, Self::Matrix, Self::Vector>,
        activation: Activation,
        gate_up: &mut Self::Tensor,
        out: &mut Self::Tensor,
    ) {
        self.matmul(x, w, gate_up);
        self.gate(gate_up, activation, out);
    }
    /// `out = out · σ(gate)`, an output gate. Both are `[n, width]`, or the gate is `[n, 1]` and for
    /// all columns of its row.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that have no output gates.
    fn sigmoid_gate(
        &mut self,
        gate: &Self::Tensor,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (gate, out);
        let remedy = "this device has no output gates of attention; give --device cpu";
        Err(BackendError::Unsupported(remedy.into()))
    }
    /// `out = f(x)` with the activation `f`, the middle of an MLP without gates.
    fn activate(&mut self, x: &Self::Tensor, activation: Activation, out: &mut Self::Tensor);
    /// Scales logits in place, or the residual stream.
    fn scale_logits(&mut self, logits: &mut Self::Tensor, scaling: LogitScaling);
    /// A mixture of experts behind its router, row by row. `scores` `[n, scored]`, whose content
    /// afterwards is unspecified, become weights in f32, as [`Experts::routing`] says. The experts
    /// of a row are those of the [`Experts::active`] largest weights, corrected if there is a
    /// correction, of equal ones the lower; and the shared ones. Where experts are in groups, a row
    /// chooses groups first, likewise, and its experts are of these. Then
    /// `out = Σ weight · down(f(gate(x), up(x)))` over those of them that are here, with the
    /// function [`Experts::gate`], added by ascending expert; zero if none is here. A weight is
    /// multiplied by its expert's factor of [`Experts::scales`], if there are some.
    ///
    /// Devices of which [`Memory::serves_format`] serves matrices of [`MatrixRole::Router`] have
    /// the operation.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on other devices.
    ///
    /// [`MatrixRole::Router`]: crate::MatrixRole::Router
    fn experts(
        &mut self,
        x: &Self::Tensor,
        scores: &mut Self::Tensor,
        w: Experts<'_, Self::Matrix, Self::Vector>,
        space: ExpertSpace<'_, Self::Tensor>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (x, scores, w, space, out);
        let remedy = "this device runs no mixtures of experts; give --device cpu";
        Err(BackendError::Unsupported(remedy.into()))
    }
    /// All of a Gated DeltaNet between its projections, as layer `layer` of `states`: convolution,
    /// silu, the gated delta rule and the gated norm, as [`lockstep_types::GatedDeltaSpec`] says.
    /// Each row goes on from its state, replays records, keeps copies, and commits its tokens or
    /// leaves their records ([`Batch::states`]). The state before a token, and the token's columns
    /// of the convolution, are those of its ancestors in a masked row, of the row's tokens before
    /// it in another. A token has the same bits in any row, however it came there.
    ///
    /// `out` is `[n, value_heads · value_dim]`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that have no recurrent layers;
    /// [`BackendError::OutOfMemory`] for working memory.
    ///
    /// # Panics
    /// Panics if the batch names states, records or nodes that `states` does not have.
    ///
    /// [`Batch::states`]: crate::Batch::states
    fn gated_delta(
        &mut self,
        states: &mut Self::States,
        layer: usize,
        op: &GatedDelta<'_, Self::Vector>,
        operands: DeltaOperands<'_, Self::Tensor>,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (states, layer, op, operands, inputs, out);
        Err(BackendError::Unsupported(NO_STATES.into()))
    }
    /// All of a Mamba-2 block between its projections but its norm, as layer `layer` of `states`:
    /// convolution, silu, the state space and the output's gates, as
    /// [`lockstep_types::Mamba2Spec`] says. States and records are as in [`Self::gated_delta`].
    ///
    /// `out` is `[n, value_heads · value_dim]`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that do not have the operation;
    /// [`BackendError::OutOfMemory`] for working memory.
    ///
    /// # Panics
    /// Panics if the batch names states, records or nodes that `states` does not have.
    fn mamba2(
        &mut self,
        states: &mut Self::States,
        layer: usize,
        op: &Mamba2<'_, Self::Vector>,
        operands: Mamba2Operands<'_, Self::Tensor>,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (states, layer, op, operands, inputs, out);
        Err(BackendError::Unsupported(NO_STATES.into()))
    }
    /// `sums[i, g] = Σ x²` over this rank's columns of group `g` in row `i`, zero for a group that
    /// has none here; `sums` is `[n, groups.count]`. The sum over ranks is that of whole groups.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that do not have the operation.
    fn group_square_sums(
        &mut self,
        x: &Self::Tensor,
        groups: &ColumnGroups,
        sums: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (x, groups, sums);
        Err(BackendError::Unsupported(NO_STATES.into()))
    }
    /// `out = x / rms(x) · weight`, where the mean square is that of each group of columns. `sums`
    /// are squares of whole groups, as [`Self::group_square_sums`] leaves them.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that do not have the operation.
    fn group_norm(
        &mut self,
        x: &Self::Tensor,
        groups: &ColumnGroups,
        sums: &Self::Tensor,
        norm: RmsNorm<'_, Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (x, groups, sums, norm, out);
        Err(BackendError::Unsupported(NO_STATES.into()))
    }
    /// All of a gated short convolution between its projections, as layer `layer` of `states`:
    /// `out = c · (w * (b · x))`, as [`lockstep_types::ShortConvolutionSpec`] says. The columns
    /// `b · x` are what states and records hold, which are as in [`Self::gated_delta`].
    ///
    /// `projected` is `[n, 3·channels]`: `b`, then `c`, then `x`. `space` and `out` are
    /// `[n, channels]`. The content of `space` afterwards is unspecified.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that do not have the operation;
    /// [`BackendError::OutOfMemory`] for working memory.
    ///
    /// # Panics
    /// Panics if the batch names states, records or nodes that `states` does not have.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    fn short_convolution(
        &mut self,
        states: &mut Self::States,
        layer: usize,
        op: &ShortConvolution<'_, Self::Vector>,
        projected: &Self::Tensor,
        space: &mut Self::Tensor,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (states, layer, op, projected, space, inputs, out);
        Err(BackendError::Unsupported(NO_STATES.into()))
    }
    /// Copies whole states, in all layers that share `states`, bit for bit: `(from, to)` in turn.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that have no recurrent layers.
    fn copy_states(
        &mut self,
        states: &mut Self::States,
        moves: &[(u32, u32)],
    ) -> Result<(), BackendError> {
        let _ = (states, moves);
        Err(BackendError::Unsupported(NO_STATES.into()))
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
    /// `out[i] = x[i, first..first + width]`, of as many rows, where `width` is `out`'s.
    fn take_columns(&mut self, x: &Self::Tensor, first: usize, out: &mut Self::Tensor);
    /// Returns `x`, which holds sums, as products read it: `x` itself if the device keeps both
    /// alike, otherwise a copy in `space`, which holds operands and has `x`'s shape.
    fn as_operand<'a>(
        &mut self,
        x: &'a Self::Tensor,
        space: &'a mut Self::Tensor,
    ) -> &'a Self::Tensor;
    /// Copies the keys and values of cells, in all layers of a cache, bit for bit: `(from, to)`
    /// in turn.
    fn copy_cells(&mut self, cache: &mut Self::KvCache, moves: &[(u32, u32)]);
}
