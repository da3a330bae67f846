//! A part of a block: 32 columns. Layouts are those of ggml's `ggml-common.h`.

use half::f16;
use lockstep_types::BlockType;

use crate::weights::GroupStep;

/// Columns of a part. All types but one have a multiple of their factor for each.
pub(super) const PART: usize = 32;

/// Offset of the third of three 6-bit fields in which multiples of factors lie.
const MULTIPLES: usize = 4;

/// A part of a block.
pub(super) struct Part<'b> {
    /// Type of the block.
    pub kind: BlockType,
    /// Bytes of the block.
    pub block: &'b [u8],
    /// Number of the part in the block.
    pub number: usize,
}

/// Returns the factors of a block: the scale, and the minimum's if there is one.
pub(super) fn factors(kind: BlockType, block: &[u8]) -> [f32; 2] {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match kind {
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => [half(0), half(2)],
        BlockType::Q6_K => [half(208), 0.0],
        // Half of the exponent's power, since numbers of the table are doubled.
        BlockType::MXFP4 => [half_power(block[0]), 0.0],
        BlockType::Q4_0
        | BlockType::Q5_0
        | BlockType::Q8_0
        | BlockType::IQ4_NL
        | BlockType::IQ4_XS => [half(0), 0.0],
    }
}

/// Returns 2 to the power of `exponent` − 128, which is exact in f32.
fn half_power(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (exponent - 1) << 23,
    })
}

impl Part<'_> {
    /// Returns scales and minimums of the part's halves.
    pub fn steps(&self) -> [GroupStep; 2] {
        let [factor, min_factor] = factors(self.kind, self.block);
        let plain = GroupStep {
            factor,
            multiple: 1,
            ..GroupStep::default()
        };
        let one = match self.kind {
            BlockType::Q4_1 | BlockType::Q5_1 => GroupStep {
                // The minimum is added in these types.
                min_factor: -min_factor,
                min_multiple: 1,
                ..plain
            },
            BlockType::Q4_K | BlockType::Q5_K => {
                let [scale, min] = six_bits(&self.block[MULTIPLES..], self.number);
                GroupStep {
                    multiple: scale.into(),
                    min_factor,
                    min_multiple: min.into(),
                    ..plain
                }
            }
            BlockType::Q6_K => {
                let multiple =
                    |half: usize| i16::from(self.block[192 + 2 * self.number + half] as i8);
                return [0, 1].map(|half| GroupStep {
                    multiple: multiple(half),
                    ..plain
                });
            }
            BlockType::IQ4_XS => {
                let low = self.block[4 + self.number / 2] >> (4 * (self.number % 2)) & 15;
                let high = u16::from_le_bytes([self.block[2], self.block[3]]);
                let high = (high >> (2 * self.number) & 3) as u8;
                GroupStep {
                    multiple: i16::from(low | high << 4) - 32,
                    ..plain
                }
            }
            BlockType::Q4_0
            | BlockType::Q5_0
            | BlockType::Q8_0
            | BlockType::IQ4_NL
            | BlockType::MXFP4 => plain,
        };
        [one; 2]
    }

    /// Returns the part's codes.
    pub fn codes(&self) -> [i8; PART] {
        match self.kind {
            BlockType::Q4_0 => self.halves(2).map(|code| code - 8),
            BlockType::Q4_1 => self.halves(4),
            BlockType::Q5_0 => self.fifths(2).map(|code| code - 16),
            BlockType::Q5_1 => self.fifths(4),
            BlockType::Q8_0 => std::array::from_fn(|col| self.block[2 + col] as i8),
            BlockType::Q4_K => self.pairs(16),
            BlockType::Q5_K => {
                let mut codes = self.pairs(48);
                for (code, bits) in codes.iter_mut().zip(&self.block[16..]) {
                    *code |= ((bits >> self.number & 1) << 4) as i8;
                }
                codes
            }
            BlockType::Q6_K => self.sixths(),
            BlockType::IQ4_NL => self.halves(2),
            BlockType::IQ4_XS => self.halves(8 + 16 * self.number),
            BlockType::MXFP4 => self.halves(1),
        }
    }

    /// Codes of 4 bits in 16 bytes from `at` on: the low ones first, then the high ones.
    fn halves(&self, at: usize) -> [i8; PART] {
        std::array::from_fn(|col| (self.block[at + col % 16] >> (4 * (col / 16)) & 15) as i8)
    }

    /// Codes of 5 bits: the highest ones in 32 bits from `at` on, the others as [`Self::halves`]
    /// behind them.
    fn fifths(&self, at: usize) -> [i8; PART] {
        let mut codes = self.halves(at + 4);
        for (col, code) in codes.iter_mut().enumerate() {
            *code |= ((self.block[at + col / 8] >> (col % 8) & 1) << 4) as i8;
        }
        codes
    }

    /// Codes of 4 bits of a block of 256: two parts share 32 bytes from `at` on.
    fn pairs(&self, at: usize) -> [i8; PART] {
        let (at, shift) = (at + self.number / 2 * PART, self.number % 2 * 4);
        std::array::from_fn(|col| (self.block[at + col] >> shift & 15) as i8)
    }

    /// Codes of 6 bits of a block of 256: four parts share 64 bytes of low bits and 32 bytes of
    /// high ones.
    fn sixths(&self) -> [i8; PART] {
        let (quarter, own) = (self.number / 4, self.number % 4);
        let low = 64 * quarter + PART * (own % 2);
        let high = 128 + PART * quarter;
        std::array::from_fn(|col| {
            let low = self.block[low + col] >> (4 * (own / 2)) & 15;
            let high = self.block[high + col] >> (2 * own) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

/// Returns the multiples of scale and minimum of a part, in the 12 bytes of those of eight parts.
fn six_bits(bytes: &[u8], part: usize) -> [u8; 2] {
    match part {
        0..4 => [bytes[part] & 63, bytes[part + 4] & 63],
        _ => [
            bytes[part + 4] & 15 | bytes[part - 4] >> 6 << 4,
            bytes[part + 4] >> 4 | bytes[part] >> 6 << 4,
        ],
    }
}
