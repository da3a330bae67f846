//! Numbers of parameters, counted from the parts that a model lists.

use lockstep_backend::{MatrixRole, WeightFormat};
use lockstep_types::ModelConfig;

use super::decoder::Decoder;
use crate::{
    Shard, Topology,
    blocks::parts::{Listing, Tensors},
};

/// Returns the number of a model's parameters. An embedding that is the output head too counts
/// once.
pub fn parameters(model: &ModelConfig) -> usize {
    let listed = Decoder::listed(model, &Shard::of(model, Topology::alone()));
    let (mut matrices, mut vectors) = (0, 0);
    listed.each(
        |matrix| matrices += matrix.elements(),
        |vector| vectors += vector.len(),
    );
    matrices + vectors
}

/// Returns the number of a model's parameters without the experts that a token does not take.
pub fn active_parameters(model: &ModelConfig) -> usize {
    let listed = Decoder::listed(model, &Shard::of(model, Topology::alone()));
    let mlps = listed.layers.iter().filter_map(|layer| layer.mlp.as_ref());
    let idle: usize = mlps.map(|mlp| mlp.elements() - mlp.products()).sum();
    parameters(model) - idle
}

/// Returns the format and the role of a model's matrices, each pair once.
pub fn matrix_formats(model: &ModelConfig) -> Vec<(WeightFormat, MatrixRole)> {
    let mut found = Vec::new();
    let listed = Decoder::listed(model, &Shard::of(model, Topology::alone()));
    listed.each(
        |matrix| {
            let pair = (matrix.format(model), matrix.role);
            if !found.contains(&pair) {
                found.push(pair);
            }
        },
        |_| {},
    );
    found
}

/// Returns the share of a token's matrix products that all ranks compute together under
/// data-parallel attention, in 65,536ths. These are MLP and output head. The other products are
/// attention's projections, copies of key/value heads included. They run on the `attn_tp_size`
/// ranks of the token's DP rank alone. `attn_tp_size` must divide the model's heads.
pub fn shared_part(model: &ModelConfig, attn_tp_size: usize) -> u32 {
    let (mut own, mut shared) = (0, 0);
    for rank in 0..attn_tp_size {
        let topology = Topology::new(rank, attn_tp_size, 1);
        let listed = Decoder::listed(model, &Shard::of(model, topology));
        for layer in &listed.layers {
            own += layer.mixer.as_ref().map_or(0, |mixer| mixer.elements());
            own += layer.per_layer.as_ref().map_or(0, Listing::elements);
            shared += layer.mlp.as_ref().map_or(0, |mlp| mlp.products());
        }
        shared += listed.head().elements();
    }
    let part = ((shared as u128) << 16) / (own + shared).max(1) as u128;
    part as u32
}

#[cfg(test)]
mod tests;
