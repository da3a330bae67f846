//! What a tile asks memory for while it computes.

use crate::prefetch;

/// Places at which a tile asks for the slice after its own.
pub(crate) const STREAMS: usize = 4;

/// Memory that a tile asks for while it computes: part of the slice of weights
/// that its thread reads next, as [`STREAMS`] runs of words.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// Where this tile's part of the first run begins.
    pub from: *const u32,
    /// Words from one run to the next.
    pub stride: usize,
    /// Tiles that divide the slice: each asks for as many words per step as a
    /// step of weights has, divided by it.
    pub parts: usize,
    /// Words ahead of its own at which a tile of one panel brings weights into
    /// the first-level cache.
    pub near: usize,
}

impl Ahead {
    /// Asks for nothing but its own slice, which is in the second-level cache.
    pub(crate) const NOTHING: Self = Self {
        from: std::ptr::null(),
        stride: 0,
        parts: 1,
        near: NEAR,
    };
    /// Asks for nothing but its own slice and what follows it in memory.
    pub(crate) const FOLLOWING: Self = Self {
        near: NEAR_FOLLOWING,
        ..Self::NOTHING
    };

    /// Itself, or what is at hand anyway: asking costs less than a branch, but
    /// not for an address without memory.
    pub(crate) fn or(self, near: *const u32) -> Self {
        if self.from.is_null() {
            Self { from: near, ..self }
        } else {
            self
        }
    }

    /// Asks for two cache lines of each run per [`Asking::next`], less where
    /// several tiles divide the slice.
    #[inline(always)]
    pub(crate) fn asking(&self) -> Asking {
        Asking {
            runs: std::array::from_fn(|run| self.from.wrapping_add(run * self.stride)),
            at: 0,
            advance: 2 * LINE / self.parts,
            near: self.near,
        }
    }
}

/// How far a tile has asked.
pub(crate) struct Asking {
    runs: [*const u32; STREAMS],
    at: usize,
    advance: usize,
    /// See [`Ahead::near`].
    pub(crate) near: usize,
}

impl Asking {
    /// Asks for what comes next of run `run`.
    #[inline(always)]
    pub(crate) fn ask(&self, run: usize) {
        let line = self.runs[run].wrapping_add(self.at);
        prefetch::far(line);
        prefetch::far(line.wrapping_add(LINE));
    }

    /// To be called when every run was asked for once.
    #[inline(always)]
    pub(crate) fn next(&mut self) {
        self.at += self.advance;
    }
}

/// Words of a cache line.
const LINE: usize = 16;
/// Words from a slice's current ones to those that are brought from the second to
/// the first-level cache.
const NEAR: usize = 128;
/// The same where they come from memory: 8 KiB.
const NEAR_FOLLOWING: usize = 2_048;
