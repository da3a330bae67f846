//! The uses of activations.

/// The content of a tensor, from which a device chooses the tensor's type in memory.
///
/// | Operation | reads | writes |
/// |---|---|---|
/// | `embed` | | sums |
/// | `matmul` | operands | sums or logits |
/// | `rms_norm` | sums | operands |
/// | `end_block`, `matmul_end_block` | operands (`x`), sums (`residual`, `delta`) | sums (`residual`), operands (`out`) |
/// | `matmul_scatter_end_block` | operands (`x`), sums (`residual`, `product`) | sums (`residual`), operands (`out`) |
/// | `head_norm`, `whole_norm`, `rope` | sums | sums, in place |
/// | `join_norms` | sums (`x`, `y`), operands (`space`) | sums (`x`), in place |
/// | `square_sums` | sums | sums |
/// | `attention`, `attend` | sums (`qkv`) | operands |
/// | `matmul_attend` | operands (`x`), sums (`qkv`) | operands |
/// | `sigmoid_gate` | sums (`gate`), operands | operands, in place |
/// | `gated_delta`, `short_convolution` | sums | operands |
/// | `mamba2`, `group_square_sums` | sums | sums |
/// | `group_norm` | sums | operands |
/// | `attend_latent` | sums (`query`, `cell`, `qkv`), operands (`means`) | operands |
/// | `gate`, `gated_matmul`, `activate` | operands (`x` of a product), sums | operands |
/// | `adapter_places` | | operands |
/// | `add_adapters` | operands (`x`, `places`), sums (`out`) | sums (`out`), in place |
/// | `scale_logits` | logits or sums | the same, in place |
/// | `experts` | operands (`x`, `activated`), sums (`scores`, `gate_up`, `products`) | sums (`out`) |
/// | `scatter_end_block` | sums (`residual`, `product`) | sums (`residual`), operands (`out`) |
/// | `all_reduce` | sums | sums |
/// | `all_gather_rows` | operands | operands |
/// | `gather_to_host` | logits | |
/// | `gather_rows`, `copy_rows`, `place_columns`, `take_columns` | sums or operands | either, converted |
/// | `as_operand` | sums | operands |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Sums: the residual stream, and all other results of products and lookups on their way to
    /// a norm, to attention or to an activation. f32 on every device.
    Sum,
    /// Inputs of products: f32, or the type that the device multiplies in.
    Operand,
    /// Logits, which are read on the host: f32 on every device.
    Logits,
}
