//! The blocks that models are made of. A block's file is the only place that knows its
//! tensors, its part on each rank, its exchanges and its pass.

pub(crate) mod allocate;
mod attention;
mod gated_mlp;
mod layer;
mod linear;
mod norm;
pub(crate) mod parts;
mod rope;

pub(crate) use attention::{Attention, AttentionBuffers, attention_shapes, rope_tables};
pub(crate) use gated_mlp::{Boundary, GatedMlp, MlpBuffers, mlp_widths};
pub(crate) use layer::{Layer, LayerBuffers, LayerContext, LayerPlace};
pub(crate) use linear::Linear;
pub(crate) use norm::Norm;
pub use rope::rope_table;
