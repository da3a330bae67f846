//! The exchanges of recorded passes. If devices exchange data by themselves, nobody compares
//! their requests, and ranks that differ would wait for ever.

use std::{fmt, ops::Range};

use lockstep_collective::Owners;
use lockstep_types::Dtype;

use crate::{Axis, PassKey};

/// A collective's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Sums over ranks, for all ranks.
    AllReduce = 1,
    /// Sums over ranks; each rank takes its part.
    ReduceScatter = 2,
    /// The parts of all ranks in rank order, for all ranks.
    AllGather = 3,
    /// The part of one rank, for all ranks.
    Broadcast = 4,
    /// The parts of all ranks in rank order, for one rank.
    Gather = 5,
}

/// A collective of devices, by all that ranks must ask for alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveCall {
    /// The operation.
    pub kind: ExchangeKind,
    /// The ranks that run the collective together.
    pub axis: Axis,
    /// Number of elements that each rank brings. In a reduce-scatter: elements that each rank
    /// takes. In a gather: all elements that the root takes.
    pub elements: usize,
    /// Type of the elements.
    pub dtype: Dtype,
    /// The rank of the axis that sends in a broadcast, or takes all in a gather; otherwise 0.
    pub root: usize,
}

/// The passes of one model that a device has recorded, by their sizes.
pub trait PassRecords: Default + Send {
    /// Makes records without passes. The model's passes will have the exchanges of `plans`, in
    /// that order, and no exchanges in sizes without a plan. If a pass's work asks for
    /// something else, the device returns an error before it runs any of the work.
    fn planned(_plans: Vec<PassPlan>) -> Self {
        Self::default()
    }
    /// Returns the plans.
    fn plans(&self) -> &[PassPlan] {
        &[]
    }
    /// Returns the collectives that were noted while each recorded pass was recorded.
    fn noted(&self) -> Vec<PassPlan> {
        Vec::new()
    }
}

/// Records of a device that records no passes.
impl PassRecords for () {}

/// All collectives of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassPlan {
    /// The size of the pass.
    pub key: PassKey,
    /// The collectives, in order.
    pub exchanges: Vec<CollectiveCall>,
}

impl PassPlan {
    /// Returns the first place where ranks with these two plans would wait for each other, with
    /// each rank's exchange there, if it has one. `None` if the plans are equal.
    pub fn differs(&self, other: &Self) -> Option<(usize, [Option<CollectiveCall>; 2])> {
        let of = |plan: &Self, at| plan.exchanges.get(at).copied();
        let all = 0..self.exchanges.len().max(other.exchanges.len());
        let mut pairs = all.map(|at| (at, [of(self, at), of(other, at)]));
        pairs.find(|(_, [ours, theirs])| ours != theirs)
    }
}

impl CollectiveCall {
    /// Number of words of the fixed-size encoding.
    pub const WORDS: usize = 4;

    /// Makes the sum of `elements` floats over the ranks of `axis`; `None` for 0 elements.
    pub fn sum(axis: Axis, elements: usize) -> Option<Self> {
        Self::of(ExchangeKind::AllReduce, axis, elements, Dtype::Float32)
    }

    /// Makes the sum of `len` floats, a matrix `width` wide, of which rank `r` takes the rows
    /// `rows[r]`. It is an all-reduce where ranks take uneven parts, or share some.
    pub fn scatter(axis: Axis, len: usize, rows: &[Range<usize>], width: usize) -> Option<Self> {
        let each = rows.first().map_or(0, |rows| rows.len());
        let even = |(rank, rows): (usize, &Range<usize>)| *rows == (rank * each..(rank + 1) * each);
        let even = rows.iter().enumerate().all(even) && each * rows.len() * width == len;
        match even {
            true => Self::of(
                ExchangeKind::ReduceScatter,
                axis,
                each * width,
                Dtype::Float32,
            ),
            false => Self::sum(axis, len),
        }
    }

    /// Makes the exchange of `lens[r]` elements of each rank `r`, for all ranks. It is one
    /// all-gather if all lengths are equal, and otherwise a broadcast of each rank in turn.
    pub fn gather(
        axis: Axis,
        lens: impl Iterator<Item = usize> + Clone,
        dtype: Dtype,
    ) -> impl Iterator<Item = Self> + Clone {
        let each = lens.clone().next().unwrap_or(0);
        let even = lens.clone().all(|len| len == each);
        let all = match even {
            true => Self::of(ExchangeKind::AllGather, axis, each, dtype),
            false => None,
        };
        let parts = lens.enumerate().filter(move |_| !even);
        let parts = parts.filter_map(move |(root, len)| {
            let part = Self::of(ExchangeKind::Broadcast, axis, len, dtype)?;
            Some(Self { root, ..part })
        });
        all.into_iter().chain(parts)
    }

    /// Makes the gathers of all ranks' columns, floats, for the owners of rows; each owner gets
    /// whole rows.
    pub fn collect(axis: Axis, owners: Owners<'_>) -> impl Iterator<Item = Self> + Clone + '_ {
        let width: usize = owners.widths.iter().sum();
        let rows = owners.rows.iter().map(|rows| rows.len()).enumerate();
        rows.filter_map(move |(root, rows)| {
            let all = Self::of(ExchangeKind::Gather, axis, rows * width, Dtype::Float32)?;
            Some(Self { root, ..all })
        })
    }

    /// Makes the broadcast of `words` words of the first rank of `axis`. The words travel as
    /// floats.
    pub fn tell(axis: Axis, words: usize) -> Option<Self> {
        Self::of(ExchangeKind::Broadcast, axis, words, Dtype::Float32)
    }

    fn of(kind: ExchangeKind, axis: Axis, elements: usize, dtype: Dtype) -> Option<Self> {
        (elements > 0).then_some(Self {
            kind,
            axis,
            elements,
            dtype,
            root: 0,
        })
    }

    /// Encodes into words.
    pub fn to_words(self) -> [u32; Self::WORDS] {
        let axis = match self.axis {
            Axis::World => 1,
            Axis::Attention => 2,
            Axis::Alone => 3,
        };
        let dtype = match self.dtype {
            Dtype::Float32 => 1,
            Dtype::Bfloat16 => 2,
        };
        let what = self.kind as u32 | axis << 8 | dtype << 16;
        let elements = self.elements as u64;
        [
            what,
            self.root as u32,
            elements as u32,
            (elements >> 32) as u32,
        ]
    }

    /// Decodes what [`Self::to_words`] encoded; `None` for words of another encoding.
    pub fn from_words(words: &[u32; Self::WORDS]) -> Option<Self> {
        let [what, root, low, high] = *words;
        let kind = match what & 0xff {
            1 => ExchangeKind::AllReduce,
            2 => ExchangeKind::ReduceScatter,
            3 => ExchangeKind::AllGather,
            4 => ExchangeKind::Broadcast,
            5 => ExchangeKind::Gather,
            _ => return None,
        };
        let axis = match what >> 8 & 0xff {
            1 => Axis::World,
            2 => Axis::Attention,
            3 => Axis::Alone,
            _ => return None,
        };
        let dtype = match what >> 16 {
            1 => Dtype::Float32,
            2 => Dtype::Bfloat16,
            _ => return None,
        };
        Some(Self {
            kind,
            axis,
            elements: (u64::from(low) | u64::from(high) << 32) as usize,
            dtype,
            root: root as usize,
        })
    }
}

/// Writes text like "an all-reduce of 384 f32 of all ranks".
impl fmt::Display for CollectiveCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ExchangeKind::AllReduce => "an all-reduce",
            ExchangeKind::ReduceScatter => "a reduce-scatter",
            ExchangeKind::AllGather => "an all-gather",
            ExchangeKind::Broadcast => "a broadcast",
            ExchangeKind::Gather => "a gather",
        };
        let dtype = match self.dtype {
            Dtype::Float32 => "f32",
            Dtype::Bfloat16 => "bf16",
        };
        let ranks = match self.axis {
            Axis::World => "of all ranks",
            Axis::Attention => "of a DP rank's ranks",
            Axis::Alone => "of a rank alone",
        };
        write!(f, "{kind} of {} {dtype} {ranks}", self.elements)?;
        match self.kind {
            ExchangeKind::Broadcast => write!(f, ", from the one with number {}", self.root),
            ExchangeKind::Gather => write!(f, ", for the one with number {}", self.root),
            _ => Ok(()),
        }
    }
}

/// Names the exchange, or says that there is none.
pub(crate) fn named(exchanged: Option<CollectiveCall>) -> String {
    exchanged.map_or_else(|| "nothing".to_owned(), |one| one.to_string())
}

#[cfg(test)]
mod tests;
