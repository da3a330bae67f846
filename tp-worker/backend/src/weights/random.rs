//! Matrices of random numbers in place of trained weights.

use half::bf16;

use super::HostMatrix;
use super::form::{HostBlock, HostForm};

/// A matrix `[rows, cols]` of random numbers, bfloat16 as checkpoints hold them. Each number
/// follows from its tensor and its place in it alone, so all splits of a model have the same
/// weights, on all devices.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomMatrix {
    /// Number of columns.
    pub cols: usize,
    /// Row blocks, top to bottom.
    pub blocks: Vec<RandomBlock>,
}

/// `rows` rows of a tensor. Element `c` of row `r` is the tensor's number
/// `first + r·stride + c`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomBlock {
    /// The tensor's numbers.
    pub numbers: RandomNumbers,
    /// Index of the first row's first column in the tensor.
    pub first: usize,
    /// Number of elements from one row to the next.
    pub stride: usize,
    /// Number of rows in this block.
    pub rows: usize,
}

/// The numbers of one tensor: uniform, with a mean of zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomNumbers {
    /// Start of the numbers in the generator's sequence, another for each tensor.
    pub key: u64,
    /// Factor of the whole numbers from -2²³ to 2²³.
    pub step: f32,
}

/// Bits of a random whole number. Every such number is exact in f32.
const BITS: u32 = 24;

impl RandomNumbers {
    /// Makes numbers with the standard deviation `deviation`.
    pub fn new(key: u64, deviation: f32) -> Self {
        // Uniform numbers reach √3 deviations far.
        let step = deviation * 3f32.sqrt() / (1 << (BITS - 1)) as f32;
        Self { key, step }
    }

    /// Returns number `index`.
    #[inline]
    pub fn at(&self, index: usize) -> bf16 {
        // SplitMix64 (Steele, Lea & Flood, 2014): each number of its sequence can be computed
        // alone.
        let place = (index as u64).wrapping_add(1);
        let mut x = self
            .key
            .wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        let whole = (x >> (u64::BITS - BITS)) as i32 - (1 << (BITS - 1));
        bf16::from_f32(whole as f32 * self.step)
    }
}

impl RandomMatrix {
    /// Puts the rows of `other` below these.
    pub(super) fn append(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
    }
}

impl<'a> HostForm<'a> for RandomMatrix {
    fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.rows).sum()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn row_bytes(&self) -> usize {
        self.cols * size_of::<bf16>()
    }

    /// Returns none: no file holds the numbers.
    fn blocks(&self) -> &[HostBlock<'a>] {
        &[]
    }

    fn with_rows<'b>(&self, _: &'b [u8]) -> HostMatrix<'b> {
        HostMatrix::Random(self.clone())
    }

    /// Makes the numbers.
    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        let mut row = row;
        for block in &self.blocks {
            if row < block.rows {
                let first = block.first + row * block.stride + from;
                for (index, value) in (first..).zip(values) {
                    *value = block.numbers.at(index).to_f32();
                }
                return;
            }
            row -= block.rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(matrix: &RandomMatrix) -> Vec<f32> {
        let mut all = vec![0.0; matrix.rows() * matrix.cols];
        for (row, values) in all.chunks_exact_mut(matrix.cols).enumerate() {
            // In two pieces, as packing reads them.
            let (start, end) = values.split_at_mut(matrix.cols / 3);
            matrix.read(row, 0, start);
            matrix.read(row, matrix.cols / 3, end);
        }
        all
    }

    fn block(key: u64, first: usize, stride: usize, rows: usize) -> RandomBlock {
        RandomBlock {
            numbers: RandomNumbers::new(key, 0.5),
            first,
            stride,
            rows,
        }
    }

    #[test]
    fn numbers_are_spread_as_asked_for() {
        let matrix = RandomMatrix {
            cols: 1000,
            blocks: vec![block(7, 0, 1000, 100)],
        };
        let numbers = numbers(&matrix);
        let count = numbers.len() as f32;
        let mean = numbers.iter().sum::<f32>() / count;
        let variance = numbers.iter().map(|x| x * x).sum::<f32>() / count;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance.sqrt() - 0.5).abs() < 0.01, "{variance}");
        assert!(numbers.iter().all(|x| x.abs() < 0.88));
    }

    /// Parts of a tensor have the numbers of the whole tensor at their place, and no two
    /// tensors are alike.
    #[test]
    fn a_number_follows_from_tensor_and_place_alone() {
        let whole = numbers(&RandomMatrix {
            cols: 6,
            blocks: vec![block(7, 0, 6, 40)],
        });
        let parts = RandomMatrix {
            cols: 2,
            blocks: vec![
                block(7, 4, 6, 3),
                block(8, 0, 2, 5),
                block(7, 30 * 6, 6, 10),
            ],
        };
        let found = numbers(&parts);
        for row in 0..3 {
            assert_eq!(found[2 * row..][..2], whole[6 * row + 4..][..2]);
        }
        for row in 0..10 {
            assert_eq!(found[2 * (8 + row)..][..2], whole[6 * (30 + row)..][..2]);
        }
        assert_ne!(found[6..16], whole[..10]);
    }
}
