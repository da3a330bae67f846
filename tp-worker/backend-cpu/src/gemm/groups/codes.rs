//! Codes of integers in groups, and the inputs that they meet.

use super::{GroupLanes, Layout};
use crate::quantize::GROUP_WORDS;

/// Codes of a step of weights.
///
/// # Safety
/// The conditions of [`Lanes`](crate::gemm::quantized::Lanes).
pub(super) trait Codes {
    /// True if inputs are integers of 16 bits.
    const WIDE: bool;
    /// Words of a column in a step.
    const WORDS: usize = GROUP_WORDS / Self::FOURS;
    /// Fours of codes in a word.
    const FOURS: usize;
    /// Start of a group's sum: the number that undoes the offset of weights, if one is left.
    unsafe fn start<L: GroupLanes>(undo: *const u32) -> L::Words;
    /// Weights of words of codes, four after four.
    unsafe fn load<L: GroupLanes>(words: L::Words, layout: &Layout) -> [L::Words; 2];
}

/// Integers of 4 bits.
pub(super) struct Nibbles;

impl Codes for Nibbles {
    const WIDE: bool = false;
    const FOURS: usize = 2;

    #[inline(always)]
    unsafe fn start<L: GroupLanes>(undo: *const u32) -> L::Words {
        // SAFETY: the caller's promise.
        unsafe { L::word(undo) }
    }

    #[inline(always)]
    unsafe fn load<L: GroupLanes>(words: L::Words, _: &Layout) -> [L::Words; 2] {
        // SAFETY: the caller's promise.
        unsafe { L::halves(words) }
    }
}

/// Codes of 4 bits that are looked up.
pub(super) struct Table;

impl Codes for Table {
    const WIDE: bool = false;
    const FOURS: usize = 2;

    #[inline(always)]
    unsafe fn start<L: GroupLanes>(undo: *const u32) -> L::Words {
        // SAFETY: the caller's promise.
        unsafe { L::start(undo) }
    }

    #[inline(always)]
    unsafe fn load<L: GroupLanes>(words: L::Words, layout: &Layout) -> [L::Words; 2] {
        // SAFETY: the caller's promise; tables have 16 entries.
        unsafe {
            let [low, high] = L::halves(words);
            let entries = layout.table.as_ptr();
            [
                L::int8(L::entries(low, entries)),
                L::int8(L::entries(high, entries)),
            ]
        }
    }
}

/// Integers of 8 bits.
pub(super) struct Bytes;

impl Codes for Bytes {
    const WIDE: bool = true;
    const FOURS: usize = 1;

    #[inline(always)]
    unsafe fn start<L: GroupLanes>(undo: *const u32) -> L::Words {
        // SAFETY: the caller's promise.
        unsafe { L::start(undo) }
    }

    #[inline(always)]
    unsafe fn load<L: GroupLanes>(words: L::Words, _: &Layout) -> [L::Words; 2] {
        // SAFETY: the caller's promise.
        unsafe { [L::int8(words); 2] }
    }
}
