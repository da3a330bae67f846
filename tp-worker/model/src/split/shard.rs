//! The part of a model that one rank holds.

use std::ops::Range;

use lockstep_types::{AttentionSpec, CheckpointFormat, ModelConfig, Mxfp4Checkpoint};

use crate::{ModelError, Place, Topology};

/// One rank's part of a model (Megatron's split, arXiv:1909.08053): rows of the vocabulary
/// and, in each layer, query heads, key/value heads and columns of the MLP.
///
/// **Heads.** With `size` ranks in a DP rank, each rank has `heads / size` query heads of a
/// layer. Key/value heads go with their query heads. One copy of a key/value head serves
/// `gcd(query heads per rank, query heads per key/value head)` query heads. So key/value
/// heads are split where the ranks divide them, and replicated where they don't.
///
/// **Recurrent layers.** Key heads are split evenly over the ranks of a DP rank. Value heads go with
/// their key heads, and so do their channels of the convolution: one range each of queries, keys and
/// values. Mamba-2 is split by heads, and each rank has the groups of its heads whole. Short
/// convolutions are split by channels.
///
/// **MLP and vocabulary.** Both are split as evenly as possible, in units of 32 columns and
/// of 16 rows. Units are halved until every rank has eight, so that shares differ by an
/// eighth at most, but for experts in MXFP4. The first ranks take one unit more, and the last unit
/// may be short. With several DP ranks, the embedding is whole on each rank: its rows are looked up
/// where a request is, and nothing is summed.
///
/// **Experts by number.** With several groups of ranks in [`Topology::experts`], each group has
/// neighbouring experts, the first groups one more where they don't divide evenly. Their columns
/// are split over the ranks of the group as above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The ranks that the parts are split over.
    pub topology: Topology,
    /// Rows of the output head of this rank.
    pub vocab: Range<usize>,
    /// Rows of the embedding of this rank.
    pub embedding: Range<usize>,
}

/// One rank's heads of a layer's attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heads {
    /// Query heads of this rank.
    pub queries: Range<usize>,
    /// The layer's key/value head behind each key/value head of this rank, in order. A head
    /// may occur more than once.
    pub kv: Vec<usize>,
}

/// Columns of one unit of an MLP.
const MLP_UNIT: usize = 32;
/// Units that each rank has, unless units are as small as 1. Fewer would leave shares too
/// uneven.
const UNITS_PER_RANK: usize = 8;
/// Rows of one unit of the vocabulary.
const VOCAB_UNIT: usize = 16;

impl Shard {
    /// Returns the part of the rank at `topology`.
    ///
    /// # Errors
    /// [`ModelError::Split`] when the ranks of a DP rank don't divide the heads of a layer, when
    /// key/value heads don't divide query heads, or when there are more ranks than MLP
    /// columns or vocabulary rows. [`ModelError::SplitExperts`] when experts can't be split by
    /// number as they should. Both name sizes that work.
    pub fn new(model: &ModelConfig, topology: Topology) -> Result<Self, ModelError> {
        let Topology {
            world, attention, ..
        } = topology;
        let split = |what, total, remedy| ModelError::Split {
            tp_size: world.size,
            dp_size: topology.dp_size(),
            what,
            total,
            remedy,
        };
        if let [(heads, what), ..] = *model.undivided_heads(attention.size) {
            let each = topology.dp_size().max(1);
            let sizes: Vec<_> = model.head_splits().iter().map(|size| size * each).collect();
            return Err(split(what, heads, listed(&sizes)));
        }
        for layer in model.attentions() {
            let (heads, kv_heads) = (layer.heads, layer.kv_heads);
            if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
                let remedy = format!("a model whose {kv_heads} key/value heads divide them");
                return Err(split("attention heads", heads, remedy));
            }
        }
        let (ep_size, served) = (topology.experts.size, model.ep_sizes(world.size));
        if !served.contains(&ep_size) {
            return Err(ModelError::SplitExperts {
                ep_size,
                tp_size: world.size,
                experts: model.fewest_experts(),
                remedy: listed(&served),
            });
        }
        for (what, total) in [
            ("MLP columns", model.narrowest_mlp(ep_size)),
            ("vocabulary rows", model.vocab_size),
        ] {
            if total < world.size {
                return Err(split(what, total, format!("at most {total}")));
            }
        }
        Ok(Self::of(model, topology))
    }

    /// Returns the part of a split that was checked before, like [`Self::new`].
    pub(crate) fn of(model: &ModelConfig, topology: Topology) -> Self {
        let vocab = vocab_range(model, topology.world);
        Self {
            topology,
            embedding: match topology.dp_size() {
                1 => vocab.clone(),
                _ => 0..model.vocab_size,
            },
            vocab,
        }
    }

    /// Returns this rank's query heads, of `heads`.
    pub fn query_heads(&self, heads: usize) -> Range<usize> {
        let Place { rank, size } = self.topology.attention;
        let local = heads / size;
        rank * local..(rank + 1) * local
    }

    /// Returns this rank's heads of an attention.
    pub fn heads(&self, layer: &AttentionSpec) -> Heads {
        let size = self.topology.attention.size;
        let group = layer.heads / layer.kv_heads;
        let queries = self.query_heads(layer.heads);
        let served = queries.len() / layer.kv_heads_per_rank(size);
        Heads {
            kv: queries.clone().step_by(served).map(|h| h / group).collect(),
            queries,
        }
    }

    /// Returns this rank's columns of an MLP of `width` columns.
    pub fn mlp(&self, width: usize) -> Range<usize> {
        split_range(width, MLP_UNIT, UNITS_PER_RANK, self.topology.world)
    }

    /// Returns the numbers of this rank's experts, of `count`.
    pub fn experts(&self, count: usize) -> Range<usize> {
        split_range(count, 1, 1, self.topology.experts)
    }

    /// Returns this rank's columns of each of its experts, which have `width` columns in `model`.
    /// Groups of MXFP4 stay whole where each rank can have one, however uneven shares are then, and
    /// so do as many inputs of integers.
    pub fn expert(&self, model: &ModelConfig, width: usize) -> Range<usize> {
        let place = self.topology.within_experts();
        match &model.checkpoint {
            CheckpointFormat::Floats | CheckpointFormat::Fp8(_) => {
                split_range(width, MLP_UNIT, UNITS_PER_RANK, place)
            }
            CheckpointFormat::Mxfp4(_)
            | CheckpointFormat::Integers(_)
            | CheckpointFormat::Gguf(_) => split_range(width, Mxfp4Checkpoint::GROUP, 1, place),
        }
    }

    /// Returns true if experts are split by number. Their columns differ then from those of the
    /// shared expert, which all ranks split.
    pub fn splits_experts_by_number(&self) -> bool {
        self.topology.experts.size > 1
    }

    /// Returns true if the head is a matrix of its own; false if it is the embedding.
    pub fn has_head(&self, model: &ModelConfig) -> bool {
        !model.tie_word_embeddings || self.vocab != self.embedding
    }

    /// Returns every rank's number of rows of the output head.
    pub fn vocab_widths(&self, model: &ModelConfig) -> Vec<usize> {
        let size = self.topology.world.size;
        (0..size)
            .map(|rank| vocab_range(model, Place { rank, size }).len())
            .collect()
    }
}

/// Returns a rank's rows of the vocabulary.
fn vocab_range(model: &ModelConfig, place: Place) -> Range<usize> {
    split_range(model.vocab_size, VOCAB_UNIT, UNITS_PER_RANK, place)
}

/// Returns a rank's part of `0..total`, split in units of `unit`. The unit is halved until
/// every rank has `least` units, or the unit is 1. Example: 100 rows on 2 ranks,
/// in units of 16 of which each has eight, are split in units of 4, into 0..52 and 52..100.
fn split_range(
    total: usize,
    unit: usize,
    least: usize,
    Place { rank, size }: Place,
) -> Range<usize> {
    let mut unit = unit;
    while unit > 1 && total / unit < least * size {
        unit /= 2;
    }
    let units = total.div_ceil(unit);
    let (each, more) = (units / size, units % size);
    let start = |rank: usize| (each * rank + more.min(rank)) * unit;
    start(rank).min(total)..start(rank + 1).min(total)
}

/// Returns numbers in words. Example: "1, 2, 4 or 8".
fn listed(numbers: &[usize]) -> String {
    let all: Vec<_> = numbers.iter().map(usize::to_string).collect();
    match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => all.concat(),
    }
}

#[cfg(test)]
mod tests;
