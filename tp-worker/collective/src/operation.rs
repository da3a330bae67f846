//! The description of an operation that ranks compare before they exchange data.

use std::fmt;

/// One operation of one rank, in the form that its peers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The group that it runs in: 0 for the first group. For a group that was split off, a
    /// digest of its origin.
    pub group: u64,
    /// Number of operations that the rank ran before this one in the group.
    pub sequence: u64,
    /// The kind of operation.
    pub kind: Kind,
    /// Number of elements: of the whole group for [`Kind::Gather`] and [`Kind::AllGather`], of
    /// each rank for other kinds.
    pub length: u64,
    /// All else that must be equal on the ranks. For a broadcast, its root. For a gather, a
    /// digest of how much each rank brings and which rows each rank gets. For a reduce-scatter,
    /// a digest of the ranges that ranks get.
    pub detail: u64,
}

/// The operations of [`crate::Collective`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`crate::Collective::all_reduce_sum`].
    AllReduceSum = 1,
    /// [`crate::Collective::gather`].
    Gather = 2,
    /// [`crate::Collective::broadcast`].
    Broadcast = 3,
    /// [`crate::Collective::barrier`].
    Barrier = 4,
    /// [`crate::Collective::exchange`].
    Exchange = 5,
    /// [`crate::Collective::all_gather`].
    AllGather = 6,
    /// [`crate::Collective::reduce_scatter_sum`].
    ReduceScatterSum = 7,
    /// [`crate::Collective::split`].
    Split = 8,
    /// A kind that this version doesn't know.
    Unknown = 255,
}

impl Kind {
    /// All known kinds.
    pub(crate) const ALL: [Self; 8] = [
        Self::AllReduceSum,
        Self::Gather,
        Self::Broadcast,
        Self::Barrier,
        Self::Exchange,
        Self::AllGather,
        Self::ReduceScatterSum,
        Self::Split,
    ];

    /// Returns the kind with number `value`.
    fn from_number(value: u64) -> Self {
        let known = Self::ALL.into_iter().find(|kind| *kind as u64 == value);
        known.unwrap_or(Self::Unknown)
    }
}

impl Operation {
    /// Number of words of the fixed-size encoding.
    pub(crate) const WORDS: usize = 5;

    /// Encodes for headers.
    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        [
            self.group,
            self.sequence,
            u64::from(self.kind as u8),
            self.length,
            self.detail,
        ]
    }

    /// Decodes what [`Self::to_words`] encoded.
    pub(crate) fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self {
            group: words[0],
            sequence: words[1],
            kind: Kind::from_number(words[2]),
            length: words[3],
            detail: words[4],
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            sequence,
            kind,
            length,
            detail,
        } = self;
        match kind {
            Kind::AllReduceSum => write!(f, "all_reduce_sum of {length} elements")?,
            Kind::Gather => write!(f, "gather of {length} elements (owners #{detail:016x})")?,
            Kind::Broadcast => write!(f, "broadcast of {length} elements from rank {detail}")?,
            Kind::Barrier => f.write_str("barrier")?,
            Kind::Exchange => write!(f, "exchange of {length} words")?,
            Kind::AllGather => {
                write!(f, "all_gather of {length} elements (counts #{detail:016x})")?;
            }
            Kind::ReduceScatterSum => {
                write!(
                    f,
                    "reduce_scatter_sum of {length} elements (ranges #{detail:016x})"
                )?;
            }
            Kind::Split => f.write_str("split")?,
            Kind::Unknown => f.write_str("an unknown operation")?,
        }
        write!(f, " as operation {sequence}")?;
        match group {
            0 => Ok(()),
            _ => write!(f, " of subgroup #{group:016x}"),
        }
    }
}
