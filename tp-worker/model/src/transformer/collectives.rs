//! Which collectives a transformer's passes issue.

use lockstep_backend::Backend;

use super::Transformer;
use crate::{CollectiveKind, CollectiveStep, CountedRows, Schedule};

impl<B: Backend> Transformer<B> {
    /// The collectives of a pass. Equal on all ranks.
    pub fn schedule(&self) -> Schedule {
        let (topology, axis) = (self.shard.topology, self.shape.axis);
        let (hidden, several) = (self.model.hidden_size, topology.dp_size() > 1);
        let of_all = |kind, width| CollectiveStep {
            kind,
            axis,
            rows: CountedRows::World,
            width,
        };
        let reduce = |axis| CollectiveStep {
            kind: CollectiveKind::AllReduce,
            axis,
            rows: CountedRows::DpRank,
            width: hidden,
        };
        // Around the MLP rows come together and apart, or its sum goes to all.
        let mlp = match several {
            true => vec![
                of_all(CollectiveKind::AllGather, hidden),
                of_all(CollectiveKind::ReduceScatter, hidden),
            ],
            false => vec![reduce(axis)],
        };
        let attention = match several && topology.attention.size == 1 {
            true => None,
            false => Some(reduce(self.shape.attention_axis)),
        };
        let layer: Vec<_> = attention.into_iter().chain(mlp).collect();
        // The last layer's run over wanted tokens only, unless all its outputs
        // are kept; then the head reads rows of all DP ranks.
        let narrow = usize::from(!self.keeps_last_hidden());
        let mut tokens = layer.repeat(self.model.num_layers - narrow);
        let mut logit_tokens = layer.repeat(narrow);
        match several {
            true => logit_tokens.push(of_all(CollectiveKind::AllGather, hidden)),
            // Behind the embedding.
            false => tokens.insert(0, reduce(axis)),
        }
        Schedule {
            tokens,
            logit_tokens,
            block: vec![of_all(CollectiveKind::Gather, self.model.vocab_size)],
            block_rows: self.limits.logit_block_rows,
        }
    }
}
