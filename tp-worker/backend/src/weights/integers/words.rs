//! Small integers in memory, of which several lie in a word.

use std::ops::Range;

use crate::weights::HostBlock;

/// A matrix `[outputs, inputs]` of integers without a sign, or a part of one. The inputs of zero
/// points are groups of inputs.
#[derive(Debug, Clone)]
pub struct PackedIntegers<'a> {
    /// Rows of words.
    pub memory: HostBlock<'a>,
    /// Bytes of such a row.
    pub width: usize,
    /// Places of integers in words.
    pub packing: Packing,
    /// Bits of an integer: 4 or 8.
    pub bits: u8,
    /// Number that is added to each word, with a carry between its integers.
    pub added: u32,
    /// Place of the first integer, of those in the first word.
    pub first: [usize; 2],
}

/// Places of integers in rows of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Direction in which memory has rows.
    pub rows: Direction,
    /// Direction in which the integers of a word follow each other.
    pub words: Direction,
    /// Order of the integers of a word.
    pub order: WordOrder,
}

/// Direction in a matrix `[outputs, inputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From one output to the next.
    Outputs,
    /// From one input to the next.
    Inputs,
}

/// Order of the integers of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordOrder {
    /// One integer fills a word, which is a byte. It is stored with a sign, that is, less half of
    /// the range.
    Byte,
    /// Words of 32 bits with the first integer in the lowest bits.
    Rising,
    /// Words of 32 bits with even integers in the low half, and odd ones in the high half.
    EvenFirst,
}

impl WordOrder {
    /// Returns the bytes of a word.
    pub fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Rising | Self::EvenFirst => 4,
        }
    }
}

impl<'a> PackedIntegers<'a> {
    /// Returns the number of integers in a word.
    pub fn per_word(&self) -> usize {
        self.packing.order.bytes() * 8 / usize::from(self.bits)
    }

    /// Returns the part with these outputs and inputs.
    #[must_use]
    pub fn part(&self, outputs: &Range<usize>, inputs: &Range<usize>) -> Self {
        let per = self.per_word();
        let words = |direction: Direction, range: &Range<usize>, first: usize| {
            let range = first + range.start..first + range.end;
            match self.packing.words == direction {
                true => (
                    range.start / per..range.end.div_ceil(per),
                    range.start % per,
                ),
                false => (range, 0),
            }
        };
        let (outputs, first_output) = words(Direction::Outputs, outputs, self.first[0]);
        let (inputs, first_input) = words(Direction::Inputs, inputs, self.first[1]);
        let (rows, cols) = match self.packing.rows {
            Direction::Outputs => (outputs, inputs),
            Direction::Inputs => (inputs, outputs),
        };
        let (size, HostBlock { offset, stride, .. }) = (self.packing.order.bytes(), self.memory);
        Self {
            memory: HostBlock {
                offset: offset + rows.start * stride + cols.start * size,
                rows: rows.len(),
                ..self.memory
            },
            width: cols.len() * size,
            first: [first_output, first_input],
            ..self.clone()
        }
    }

    /// Returns the same integers in `bytes`, row after row.
    pub(super) fn moved<'b>(&self, bytes: &'b [u8]) -> PackedIntegers<'b> {
        PackedIntegers {
            memory: HostBlock {
                bytes,
                offset: 0,
                stride: self.width,
                rows: self.memory.rows,
            },
            width: self.width,
            packing: self.packing,
            bits: self.bits,
            added: self.added,
            first: self.first,
        }
    }

    /// Writes the integers of output `output`, from input `from` on, to `integers`. Returns false
    /// if memory does not hold all of them.
    pub(super) fn read(&self, output: usize, from: usize, integers: &mut [u8]) -> bool {
        let (per, output) = (self.per_word(), self.first[0] + output);
        let mask = (1u32 << self.bits) - 1;
        let mut last = None;
        for (input, integer) in (self.first[1] + from..).zip(integers) {
            let (row, col, field) = match self.packing.words {
                Direction::Outputs => (output / per, input, output % per),
                Direction::Inputs => (output, input / per, input % per),
            };
            let place = match self.packing.rows {
                Direction::Outputs => (row, col),
                Direction::Inputs => (col, row),
            };
            let word = match last {
                Some((known, word)) if known == place => word,
                _ => match self.word(place) {
                    Some(word) => word,
                    None => return false,
                },
            };
            last = Some((place, word));
            *integer = (word >> self.shift(field) & mask) as u8;
        }
        true
    }

    /// Returns the word of a row of memory, with what is added.
    fn word(&self, (row, col): (usize, usize)) -> Option<u32> {
        let row = self.memory.row(row, self.width)?;
        let word = match self.packing.order {
            WordOrder::Byte => u32::from(*row.get(col)?),
            WordOrder::Rising | WordOrder::EvenFirst => {
                let bytes = row.get(4 * col..)?.first_chunk()?;
                u32::from_le_bytes(*bytes)
            }
        };
        Some(word.wrapping_add(self.added))
    }

    /// Returns the lowest bit of the integer `field` of a word.
    fn shift(&self, field: usize) -> usize {
        let half = self.per_word() / 2;
        let place = match self.packing.order {
            WordOrder::Byte | WordOrder::Rising => field,
            WordOrder::EvenFirst => field / 2 + field % 2 * half,
        };
        place * usize::from(self.bits)
    }
}
