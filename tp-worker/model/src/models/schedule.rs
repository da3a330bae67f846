//! The collectives a forward pass issues, known before it runs.

use lockstep_backend::{Axis, Exchanged};
use lockstep_types::{Dtype, ModelConfig};

use crate::{CollectiveKind, CollectiveStep, Topology, blocks::Layer, split::crossing::Crossing};

/// All collectives of a pass, in order. Their list depends on the model and its
/// split alone; the batches of all DP ranks only say how many rows they carry and
/// how often `block` runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Over every token, up to the last layer's attention.
    pub tokens: Vec<CollectiveStep>,
    /// Over the tokens whose logits are wanted; absent when no DP rank wants any.
    pub logit_tokens: Vec<CollectiveStep>,
    /// Once per block of `block_rows` wanted rows of all DP ranks.
    pub block: Vec<CollectiveStep>,
    /// Rows of a block.
    pub block_rows: usize,
}

impl Schedule {
    /// Those of a `model` that is split over the ranks of `axis`, on the rank at
    /// `topology`: equal on all ranks. The last layer's run over the wanted tokens
    /// alone, unless what it gives for all of them is `kept`.
    pub fn new(
        model: &ModelConfig,
        topology: Topology,
        axis: Axis,
        kept: bool,
        block_rows: usize,
    ) -> Self {
        let (hidden, several) = (model.hidden_size, topology.dp_size() > 1);
        let of_all = |kind, width| CollectiveStep::of_all(kind, axis, width);
        let layer = Layer::collectives(hidden, topology, axis);
        let narrow = usize::from(!kept);
        let mut tokens = layer.repeat(model.layers.len() - narrow);
        let mut logit_tokens = layer.repeat(narrow);
        match several {
            // The head reads rows of all DP ranks.
            true => logit_tokens.push(of_all(CollectiveKind::AllGather, hidden)),
            // Behind the embedding.
            false => tokens.insert(0, CollectiveStep::sum(axis, hidden)),
        }
        Self {
            tokens,
            logit_tokens,
            block: vec![of_all(CollectiveKind::Gather, model.vocab_size)],
            block_rows,
        }
    }

    /// The collectives of a pass over some tokens of which `logit_rows` rows of
    /// logits are wanted, by all DP ranks together.
    pub fn steps(&self, logit_rows: usize) -> impl Iterator<Item = &CollectiveStep> {
        let blocks = logit_rows.div_ceil(self.block_rows);
        let tail = if logit_rows > 0 {
            self.logit_tokens.as_slice()
        } else {
            &[]
        };
        self.tokens
            .iter()
            .chain(tail)
            .chain(std::iter::repeat_n(&self.block, blocks).flatten())
    }
    /// What devices exchange in a pass that they repeat, to which each DP rank brings
    /// so many `tokens` and wants the logits of all, on the rank at `topology`: equal on
    /// all ranks. Products read operands of the type `operand` there.
    pub fn exchanges(&self, topology: Topology, tokens: usize, operand: Dtype) -> Vec<Exchanged> {
        let mut crossing = Crossing::new(topology);
        crossing.set(&vec![tokens; topology.dp_size()]);
        // Where logits are several blocks, their rows cross behind what is recorded.
        let several = topology.dp_size() > 1 && crossing.all() > self.block_rows;
        let tail = self.logit_tokens.len() - usize::from(several);
        let mut all = Vec::new();
        for step in self.tokens.iter().chain(&self.logit_tokens[..tail]) {
            let CollectiveStep {
                kind, axis, width, ..
            } = *step;
            let ranks = match axis {
                Axis::World => topology.world.size,
                Axis::Attention => topology.attention.size,
                Axis::Alone => 1,
            };
            if ranks == 1 {
                continue;
            }
            match kind {
                CollectiveKind::AllReduce => all.extend(Exchanged::sum(axis, tokens * width)),
                CollectiveKind::ReduceScatter => {
                    let (len, rows) = (crossing.all() * width, &crossing.rows);
                    all.extend(Exchanged::scatter(axis, len, rows, width));
                }
                CollectiveKind::AllGather => {
                    let lens = crossing.counts.iter().map(|rows| rows * width);
                    all.extend(Exchanged::gather(axis, lens, operand));
                }
                // To hosts, behind what is recorded; or to devices that choose from it.
                CollectiveKind::Gather => {}
            }
        }
        all
    }
}
