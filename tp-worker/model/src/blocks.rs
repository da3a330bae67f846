//! The blocks that models are made of. A block's file is the only place that knows its
//! tensors, its part on each rank, its exchanges and its pass.

pub(crate) mod allocate;
mod attention;
mod boundary;
pub(crate) mod cache;
mod distinct;
mod gated_mlp;
mod layer;
mod linear;
mod mixer;
mod mlp;
mod norm;
pub(crate) mod parts;
mod place;
mod rope;
mod widths;

pub(crate) use attention::{Attention, AttentionBuffers, attention_shapes, attention_widths};
pub(crate) use boundary::{AllRows, Boundary, MlpOperands};
pub(crate) use gated_mlp::{GatedMlp, GatedMlpBuffers, gated_mlp_widths};
pub(crate) use layer::{Layer, LayerBuffers};
pub(crate) use linear::Linear;
pub(crate) use mixer::{Mixer, MixerBuffers};
pub(crate) use mlp::{Mlp, MlpBuffers};
pub(crate) use norm::Norm;
pub(crate) use place::{LayerContext, LayerPlace, Variants};
pub use rope::rope_table;
pub(crate) use rope::rope_tables;
