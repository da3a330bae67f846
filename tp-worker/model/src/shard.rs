//! Which part of a model one rank holds.

use std::ops::Range;

use lockstep_types::ModelConfig;

use crate::ModelError;

/// One rank's part of every matrix (Megatron's split, arXiv:1909.08053):
/// query and key/value heads, MLP columns and vocabulary rows.
///
/// **Heads.** Each rank has `num_heads / size` query heads. Key/value heads go
/// with their query heads: one copy serves `gcd(query heads per rank, query
/// heads per key/value head)` of them, so they are split where the ranks
/// divide them and replicated where they don't.
///
/// **MLP and vocabulary.** Split as evenly as possible in units (32 columns,
/// 16 rows; halved until every rank has eight, so that shares differ by an
/// eighth at most): the first ranks take one unit more, the last unit may be
/// short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// This rank.
    pub rank: usize,
    /// Ranks.
    pub size: usize,
    /// Query heads of this rank.
    pub heads: Range<usize>,
    /// The model's key/value head behind each of this rank's, in order; a
    /// head may occur more than once.
    pub kv_heads: Vec<usize>,
    /// MLP columns of this rank.
    pub mlp: Range<usize>,
    /// Vocabulary rows of this rank.
    pub vocab: Range<usize>,
}

/// Columns of the MLP are split in blocks of so many.
const MLP_UNIT: usize = 32;
/// Fewer units than these would leave shares too uneven.
const UNITS_PER_RANK: usize = 8;
/// Rows of the vocabulary are split in blocks of so many.
const VOCAB_UNIT: usize = 16;

impl Shard {
    /// The part of rank `rank` of `size`.
    ///
    /// # Errors
    /// [`ModelError::Split`] when `size` does not divide the query heads or
    /// exceeds another dimension; it names sizes that work.
    pub fn new(model: &ModelConfig, rank: usize, size: usize) -> Result<Self, ModelError> {
        let split = |what, total, remedy| ModelError::Split {
            tp_size: size,
            what,
            total,
            remedy,
        };
        if size == 0 || !model.num_heads.is_multiple_of(size) {
            let works = divisors(model.num_heads);
            return Err(split("attention heads", model.num_heads, works));
        }
        if model.num_kv_heads == 0 || !model.num_heads.is_multiple_of(model.num_kv_heads) {
            return Err(split(
                "attention heads",
                model.num_heads,
                format!(
                    "a model whose {} key/value heads divide them",
                    model.num_kv_heads
                ),
            ));
        }
        for (what, total) in [
            ("MLP columns", model.intermediate_size),
            ("vocabulary rows", model.vocab_size),
        ] {
            if total < size {
                return Err(split(what, total, format!("at most {total}")));
            }
        }
        Ok(Self::of(model, rank, size))
    }

    /// [`Self::new`] of a split that was checked.
    pub(crate) fn of(model: &ModelConfig, rank: usize, size: usize) -> Self {
        let local = model.num_heads / size;
        let group = model.num_heads / model.num_kv_heads;
        let heads = rank * local..(rank + 1) * local;
        let served = local / model.kv_heads_per_rank(size);
        Self {
            rank,
            size,
            kv_heads: heads.clone().step_by(served).map(|h| h / group).collect(),
            heads,
            mlp: split_range(model.intermediate_size, MLP_UNIT, rank, size),
            vocab: split_range(model.vocab_size, VOCAB_UNIT, rank, size),
        }
    }

    /// Whether this rank has the biases of row-parallel projections: a sum over
    /// ranks must contain them once.
    pub fn adds_biases(&self) -> bool {
        self.rank == 0
    }

    /// Every rank's number of vocabulary rows.
    pub fn vocab_widths(&self, model: &ModelConfig) -> Vec<usize> {
        (0..self.size)
            .map(|rank| split_range(model.vocab_size, VOCAB_UNIT, rank, self.size).len())
            .collect()
    }
}

/// Rank `rank`'s part of `0..total`, split in units of `unit`, or of the
/// largest power of two below it that gives every rank [`UNITS_PER_RANK`].
fn split_range(total: usize, unit: usize, rank: usize, size: usize) -> Range<usize> {
    let mut unit = unit;
    while unit > 1 && total / unit < UNITS_PER_RANK * size {
        unit /= 2;
    }
    let units = total.div_ceil(unit);
    let (each, more) = (units / size, units % size);
    let start = |rank: usize| (each * rank + more.min(rank)) * unit;
    start(rank).min(total)..start(rank + 1).min(total)
}

/// "1, 2, 4 or 8".
fn divisors(number: usize) -> String {
    let all: Vec<_> = (1..=number)
        .filter(|d| number.is_multiple_of(*d))
        .map(|d| d.to_string())
        .collect();
    match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => all.concat(),
    }
}

#[cfg(test)]
mod tests;
