//! Weight matrices before they are on a device, as checkpoints have them.

mod floats;
mod random;

use std::borrow::Cow;

use half::bf16;

use crate::BackendError;

pub use floats::{CheckpointDtype, HostBlock, HostFloats};
pub use random::{RandomBlock, RandomMatrix, RandomNumbers};

/// A rank's part of a weight matrix `[rows, cols]`, before it is on a device. There is one
/// variant for each form in which checkpoints hold matrices.
#[derive(Debug, Clone)]
pub enum HostMatrix<'a> {
    /// Floats in memory.
    Floats(HostFloats<'a>),
    /// Random numbers, which are made while the matrix is loaded.
    Random(RandomMatrix),
}

impl HostMatrix<'_> {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Floats(floats) => floats.rows(),
            Self::Random(random) => random.rows(),
        }
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        match self {
            Self::Floats(floats) => floats.cols,
            Self::Random(random) => random.cols,
        }
    }

    /// Returns the bytes of all elements on the host.
    pub fn bytes(&self) -> u64 {
        let element = match self {
            Self::Floats(floats) => floats.dtype.bytes(),
            Self::Random(_) => size_of::<bf16>(),
        };
        (self.rows() * self.cols() * element) as u64
    }

    /// Puts the rows of `other`, of equal width, below these. Returns false if the two are of
    /// different forms or types.
    pub fn append(&mut self, other: Self) -> bool {
        match (self, other) {
            (Self::Floats(all), Self::Floats(other)) if all.dtype == other.dtype => {
                all.blocks.extend(other.blocks);
            }
            (Self::Random(all), Self::Random(other)) => all.blocks.extend(other.blocks),
            _ => return false,
        }
        true
    }

    /// Returns the elements as floats in memory. Random numbers are made in `space`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn floats<'s>(
        &'s self,
        space: &'s mut Vec<u8>,
    ) -> Result<Cow<'s, HostFloats<'s>>, BackendError> {
        Ok(match self {
            Self::Floats(floats) => Cow::Borrowed(floats),
            Self::Random(random) => {
                *space = random.numbers()?;
                Cow::Owned(random.host(space))
            }
        })
    }
}
