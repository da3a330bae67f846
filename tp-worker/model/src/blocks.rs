//! The blocks that models are made of. A block's file is the only place that knows its
//! tensors, its part on each rank, its exchanges and its pass.

mod attention;
mod gated_mlp;
mod layer;
mod linear;
pub(crate) mod parts;

pub(crate) use attention::{Attention, AttentionBuffers};
pub(crate) use gated_mlp::{Boundary, GatedMlp};
pub(crate) use layer::{Layer, LayerBuffers, LayerPlace, LayerShape, LayerSizes};
pub(crate) use linear::Linear;
