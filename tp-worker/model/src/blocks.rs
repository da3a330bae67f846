//! The blocks that models are made of. A block's file is the only place that knows its
//! tensors, its part on each rank, its exchanges and its pass.

pub(crate) mod adapted;
pub(crate) mod allocate;
mod boundary;
pub(crate) mod cache;
mod distinct;
mod layer;
mod linear;
mod mixer;
mod mlp;
mod norm;
pub(crate) mod parts;
pub(crate) mod per_layer;
mod place;
pub(crate) mod recurrent;
mod rope;

pub(crate) use boundary::{AllRows, Boundary, MlpOperands};
pub(crate) use layer::{Layer, LayerBuffers, Variants};
pub(crate) use linear::Linear;
pub(crate) use mixer::{Mixer, MixerBuffers, MixerVariants, attention_shapes, latent_heads};
pub(crate) use mlp::{Mlp, MlpBuffers, MlpVariants, expert_shapes};
pub(crate) use norm::{Norm, read_stream};
pub(crate) use place::{LayerContext, LayerPlace};
pub use rope::rope_table;
pub(crate) use rope::rope_tables;
