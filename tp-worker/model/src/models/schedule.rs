//! The collectives that a forward pass issues, known before it runs.

use lockstep_backend::{Axis, CollectiveCall};
use lockstep_types::{Dtype, ModelConfig, PerLayerEmbeddings};

use crate::{
    CollectiveKind, CollectiveStep, CountedRows, Exit, Topology, blocks::Layer,
    split::crossing::Crossing,
};

/// All collectives of a pass, in order. The list depends on the model and its split alone.
/// The batches of all DP ranks decide only how many rows each collective carries and how
/// often `block` runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Collectives over every token, up to those inside of the last layer's mixer.
    pub tokens: Vec<CollectiveStep>,
    /// Collectives over the tokens whose logits are wanted, from the last layer's output
    /// projection on. A pass skips them when no DP rank wants any.
    pub logit_tokens: Vec<CollectiveStep>,
    /// Collectives of each block of `block_rows` wanted rows of all DP ranks.
    pub block: Vec<CollectiveStep>,
    /// Number of rows of a block.
    pub block_rows: usize,
}

impl Schedule {
    /// Creates the schedule of a `model` that is split over the ranks of `axis`, on the rank
    /// at `topology`. All ranks get equal schedules. The `exit` says over which tokens the
    /// last layer's collectives run.
    pub fn new(
        model: &ModelConfig,
        topology: Topology,
        axis: Axis,
        exit: Exit,
        block_rows: usize,
    ) -> Self {
        let (hidden, several) = (model.hidden_size, topology.dp_size() > 1);
        let of_all = |kind, width| CollectiveStep::of_all(kind, axis, width);
        let narrow = usize::from(exit == Exit::Logits);
        let (wide, last) = model
            .layers
            .split_at(model.layers.len().saturating_sub(narrow));
        let mix = |layer| Layer::mix_collective(layer, topology, axis);
        let finish = |layer| Layer::finish_collectives(layer, hidden, topology, axis);
        let whole = |layer| mix(layer).into_iter().chain(finish(layer));
        // Mixers run over every token in any layer: later tokens read what they leave.
        let mut tokens: Vec<_> = wide.iter().flat_map(whole).collect();
        tokens.extend(last.iter().filter_map(mix));
        let mut logit_tokens: Vec<_> = last.iter().flat_map(finish).collect();
        match several {
            // The head reads rows of all DP ranks.
            true => logit_tokens.push(of_all(CollectiveKind::AllGather, hidden)),
            // The sums behind the embedding, and behind the table of per-layer embeddings.
            false => {
                let columns = |own: &PerLayerEmbeddings| own.width * model.layers.len();
                let widths = [Some(hidden), model.per_layer.as_ref().map(columns)];
                let sums = widths.into_iter().flatten();
                tokens.splice(..0, sums.map(|width| CollectiveStep::sum(axis, width)));
            }
        }
        Self {
            tokens,
            logit_tokens,
            block: vec![of_all(CollectiveKind::Gather, model.vocab_size)],
            block_rows,
        }
    }

    /// Returns the schedule of the model with room for adapters, on the rank at `topology`. Where
    /// rows of several DP ranks cross, the places of their adapters do too.
    #[must_use]
    pub fn with_adapters(mut self, topology: Topology, axis: Axis, exit: Exit) -> Self {
        if topology.dp_size() > 1 {
            let places = CollectiveStep::of_all(CollectiveKind::AllGather, axis, 1);
            self.tokens.insert(0, places);
            if exit == Exit::Logits {
                // Behind the collectives of the last mixer.
                self.logit_tokens.insert(0, places);
            }
        }
        self
    }

    /// Returns the collectives of a pass in which all DP ranks together want `logit_rows`
    /// rows of logits.
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

    /// Returns the exchanges between devices in a pass that they repeat, on the rank at
    /// `topology`. Each DP rank brings `tokens` tokens and wants the logits of all. Products
    /// read operands of the type `operand`. All ranks get equal lists.
    pub fn exchanges(
        &self,
        topology: Topology,
        tokens: usize,
        operand: Dtype,
    ) -> Vec<CollectiveCall> {
        let mut crossing = Crossing::new(topology);
        crossing.set(&vec![tokens; topology.dp_size()]);
        // Rows of several blocks of logits cross behind the recorded pass.
        let several = topology.dp_size() > 1 && crossing.all() > self.block_rows;
        let tail = self.logit_tokens.len() - usize::from(several);
        let mut all = Vec::new();
        for step in self.tokens.iter().chain(&self.logit_tokens[..tail]) {
            let CollectiveStep {
                kind,
                axis,
                rows,
                width,
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
                CollectiveKind::AllReduce => {
                    let rows = match rows {
                        CountedRows::DpRank => tokens,
                        CountedRows::World => crossing.all(),
                    };
                    all.extend(CollectiveCall::sum(axis, rows * width));
                }
                CollectiveKind::ReduceScatter => {
                    let (len, rows) = (crossing.all() * width, &crossing.rows);
                    all.extend(CollectiveCall::scatter(axis, len, rows, width));
                }
                CollectiveKind::AllGather => {
                    let lens = crossing.counts.iter().map(|rows| rows * width);
                    all.extend(CollectiveCall::gather(axis, lens, operand));
                }
                // Logits go to hosts behind the recorded pass, or to devices that choose from
                // them.
                CollectiveKind::Gather => {}
            }
        }
        all
    }
}
