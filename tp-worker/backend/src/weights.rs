//! Weight matrices before they are on a device, as checkpoints have them. Each form of a
//! matrix is a file of this module.

mod e2m1;
mod e4m3;
mod e8m0;
mod floats;
mod form;
mod fp8;
mod gguf;
mod groups;
mod integers;
mod joined;
mod mxfp4;
mod random;
mod turned;
mod turned_fp8;

pub use e2m1::E2m1;
pub use e4m3::E4m3;
pub use e8m0::E8m0;
pub use floats::{CheckpointDtype, HostFloats};
pub use form::{HostBlock, HostForm};
pub use fp8::{HostFp8, ScaleGrid, ScalePart};
pub use gguf::HostGguf;
pub use groups::{GroupStep, HostGroups};
pub use integers::{
    Direction, GroupScales, HostIntegers, InputGroups, PackedIntegers, Packing, WordOrder,
};
pub use joined::HostJoined;
pub use mxfp4::{HostMxfp4, Mxfp4Group};
pub use random::{RandomBlock, RandomMatrix, RandomNumbers};
pub use turned::{HostTurned, Outputs};
pub use turned_fp8::HostTurnedFp8;

/// A rank's part of a weight matrix `[rows, cols]`, before it is on a device. There is one
/// variant for each [`HostForm`].
#[derive(Debug, Clone)]
pub enum HostMatrix<'a> {
    /// Floats in memory.
    Floats(HostFloats<'a>),
    /// Floats of which inputs lie before outputs.
    Turned(HostTurned<'a>),
    /// 8-bit floats with scales.
    Fp8(HostFp8<'a>),
    /// 8-bit floats of which inputs lie before outputs.
    TurnedFp8(HostTurnedFp8<'a>),
    /// Integers with scales for groups of inputs.
    Integers(HostIntegers<'a>),
    /// 4-bit floats with exponents.
    Mxfp4(HostMxfp4<'a>),
    /// Blocks of a GGUF file.
    Gguf(HostGguf<'a>),
    /// Matrices of different forms, one below the other.
    Joined(HostJoined<'a>),
    /// Random numbers, which are made while the matrix is loaded.
    Random(RandomMatrix),
}

impl<'a> HostMatrix<'a> {
    /// Returns the matrix by its form.
    pub fn form(&self) -> &dyn HostForm<'a> {
        match self {
            Self::Floats(floats) => floats,
            Self::Turned(turned) => turned,
            Self::Fp8(fp8) => fp8,
            Self::TurnedFp8(turned) => turned,
            Self::Integers(integers) => integers,
            Self::Mxfp4(mxfp4) => mxfp4,
            Self::Gguf(gguf) => gguf,
            Self::Joined(joined) => joined,
            Self::Random(random) => random,
        }
    }

    /// Returns the matrix as integers in groups; `None` if its form is something else, or if that of
    /// some rows is.
    pub fn groups(&self) -> Option<&dyn HostGroups<'a>> {
        match self {
            Self::Integers(integers) => integers.layout().map(|_| integers as &dyn HostGroups<'a>),
            Self::Joined(joined) => joined.layout().map(|_| joined as &dyn HostGroups<'a>),
            Self::Gguf(gguf) => Some(gguf),
            Self::Floats(_)
            | Self::Turned(_)
            | Self::Fp8(_)
            | Self::TurnedFp8(_)
            | Self::Mxfp4(_)
            | Self::Random(_) => None,
        }
    }

    /// Puts the rows of `other`, of equal width, below these. Rows of different forms or types
    /// stay what they are.
    pub fn append(&mut self, other: Self) {
        match (self, other) {
            (Self::Floats(all), Self::Floats(other)) if all.is_like(&other) => all.append(other),
            (Self::Fp8(all), Self::Fp8(other)) => all.append(other),
            (Self::Mxfp4(all), Self::Mxfp4(other)) if all.is_like(&other) => all.append(other),
            (Self::Gguf(all), Self::Gguf(other)) if all.is_like(&other) => all.append(other),
            (Self::Random(all), Self::Random(other)) => all.append(other),
            (Self::Joined(all), other) => all.parts.push(other),
            (all, other) => {
                let first = std::mem::replace(all, Self::Joined(HostJoined::default()));
                let parts = vec![first, other];
                *all = Self::Joined(HostJoined { parts });
            }
        }
    }

    /// Returns the name of a tensor that holds a number which is none, where its form has codes
    /// for that, or scales in files; `None` if there is no such tensor. Reads all of these.
    pub fn wrong_tensor(&self) -> Option<&str> {
        match self {
            Self::Fp8(fp8) => fp8.wrong_tensor(),
            Self::TurnedFp8(turned) => turned.stored.wrong_tensor(),
            Self::Integers(integers) => integers.wrong_tensor(),
            Self::Gguf(gguf) => gguf.wrong_tensor(),
            Self::Joined(joined) => joined.parts.iter().find_map(Self::wrong_tensor),
            Self::Floats(_) | Self::Turned(_) | Self::Mxfp4(_) | Self::Random(_) => None,
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.form().rows()
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.form().cols()
    }

    /// Returns the bytes of all elements on the host.
    pub fn bytes(&self) -> u64 {
        let of_list = |(blocks, width): (&[HostBlock<'_>], usize)| {
            blocks
                .iter()
                .map(|block| (block.rows * width) as u64)
                .sum::<u64>()
        };
        match self {
            Self::Random(random) => (random.rows() * random.row_bytes()) as u64,
            _ => self.form().parts().into_iter().map(of_list).sum::<u64>(),
        }
    }

    /// Returns the first row that its file does not hold; `None` if all are there.
    pub fn missing_row(&self) -> Option<usize> {
        if let Self::Joined(joined) = self {
            return joined.missing_row();
        }
        let missing = |(blocks, width): (&[HostBlock<'_>], usize)| {
            let mut top = 0;
            for block in blocks {
                let found = (0..block.rows).find(|&row| block.row(row, width).is_none());
                if let Some(row) = found {
                    return Some(top + row);
                }
                top += block.rows;
            }
            None
        };
        self.form().parts().into_iter().find_map(missing)
    }
}
