//! The blocks that models are made of. A block's file is the only place that knows its
//! tensors, its part on each rank, its exchanges and its pass.

pub(crate) mod allocate;
mod attention;
pub(crate) mod cache;
mod distinct;
mod gated_mlp;
mod layer;
mod linear;
mod norm;
pub(crate) mod parts;
mod place;
mod rope;

pub(crate) use attention::{Attention, AttentionBuffers, attention_shapes};
pub(crate) use gated_mlp::{Boundary, GatedMlp, MlpBuffers, MlpOperands, mlp_widths};
pub(crate) use layer::{Layer, LayerBuffers};
pub(crate) use linear::Linear;
pub(crate) use norm::Norm;
pub(crate) use place::{LayerContext, LayerPlace, Variants};
pub use rope::rope_table;
pub(crate) use rope::rope_tables;
