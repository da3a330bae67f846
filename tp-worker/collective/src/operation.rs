//! The description of an operation that ranks compare before they exchange data.

use std::fmt;

/// One operation of one rank, as its peers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// How many operations the rank ran before this one in the group.
    pub sequence: u64,
    /// Which operation it is.
    pub kind: Kind,
    /// Elements, of the whole group for [`Kind::Gather`].
    pub length: u64,
    /// Whatever else must be equal: the root of a broadcast, a digest of a
    /// gather's counts.
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
    /// Something this version doesn't know.
    Unknown = 255,
}

impl Kind {
    /// The kind with number `value`.
    pub(crate) fn from_number(value: u64) -> Self {
        match value {
            1 => Self::AllReduceSum,
            2 => Self::Gather,
            3 => Self::Broadcast,
            4 => Self::Barrier,
            _ => Self::Unknown,
        }
    }
}

impl Operation {
    /// Words of the fixed-size encoding.
    pub(crate) const WORDS: usize = 4;

    /// The encoding that travels in headers.
    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        [
            self.sequence,
            u64::from(self.kind as u8),
            self.length,
            self.detail,
        ]
    }

    /// The inverse of [`Self::to_words`].
    pub(crate) fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self {
            sequence: words[0],
            kind: Kind::from_number(words[1]),
            length: words[2],
            detail: words[3],
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sequence,
            length,
            detail,
            ..
        } = self;
        match self.kind {
            Kind::AllReduceSum => write!(f, "all_reduce_sum of {length} elements")?,
            Kind::Gather => write!(f, "gather of {length} elements (counts #{detail:016x})")?,
            Kind::Broadcast => write!(f, "broadcast of {length} elements from rank {detail}")?,
            Kind::Barrier => f.write_str("barrier")?,
            Kind::Unknown => f.write_str("an unknown operation")?,
        }
        write!(f, " as operation {sequence}")
    }
}
