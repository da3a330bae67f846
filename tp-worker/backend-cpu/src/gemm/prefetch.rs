//! Memory that a tile asks for while it computes.

use crate::prefetch;

/// Number of places at which a tile asks for the slice after its own.
pub(crate) const STREAMS: usize = 4;

/// The part of the next slice of weights that a tile asks for while it computes. The part is
/// [`STREAMS`] runs of words. The tile's thread reads this slice next.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// Start of this tile's part of the first run.
    pub from: *const u32,
    /// Words from one run to the next.
    pub stride: usize,
    /// Number of tiles that share the slice. Per step of weights each tile asks for as many
    /// words as the step has, divided by this number.
    pub parts: usize,
    /// Distance in words, ahead of its own, at which a tile of one panel brings weights into
    /// the first-level cache.
    pub near: usize,
}

impl Ahead {
    /// Asks only for the tile's own slice, which is in the second-level cache.
    pub(crate) const NOTHING: Self = Self {
        from: std::ptr::null(),
        stride: 0,
        parts: 1,
        near: NEAR,
    };
    /// Asks only for the tile's own slice and the memory behind it.
    pub(crate) const FOLLOWING: Self = Self {
        near: NEAR_FOLLOWING,
        ..Self::NOTHING
    };

    /// Returns itself if it has an address, or asks for `near`, which is at hand anyway.
    /// Asking costs less than a branch, except for an address without memory.
    pub(crate) fn or(self, near: *const u32) -> Self {
        if self.from.is_null() {
            Self { from: near, ..self }
        } else {
            self
        }
    }

    /// Asks for two cache lines of each run per [`Asking::next`], or fewer where several
    /// tiles share the slice.
    #[inline(always)]
    pub(crate) fn asking(&self) -> Asking {
        Asking {
            runs: std::array::from_fn(|run| self.from.wrapping_add(run * self.stride)),
            at: 0,
            turn: 0,
            advance: 2 * LINE / self.parts,
            near: self.near,
        }
    }
}

/// The progress of a tile's asking.
pub(crate) struct Asking {
    runs: [*const u32; STREAMS],
    at: usize,
    /// Run that [`Asking::step`] asks for next.
    turn: usize,
    advance: usize,
    /// See [`Ahead::near`].
    pub(crate) near: usize,
}

impl Asking {
    /// Asks for the next lines of run `run`.
    #[inline(always)]
    pub(crate) fn ask(&self, run: usize) {
        let line = self.runs[run].wrapping_add(self.at);
        prefetch::far(line);
        prefetch::far(line.wrapping_add(LINE));
    }

    /// Asks for the next lines of the runs in turn: as many words as a panel has columns, or fewer
    /// where several tiles share the slice.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        self.ask(self.turn);
        self.turn = (self.turn + 1) % STREAMS;
        if self.turn == 0 {
            self.next();
        }
    }

    /// Moves on to the next lines. Call it when every run was asked for once.
    #[inline(always)]
    pub(crate) fn next(&mut self) {
        self.at += self.advance;
    }
}

/// Words of a cache line.
const LINE: usize = 16;
/// Distance in words at which a tile brings weights of its slice from the second to the
/// first-level cache.
const NEAR: usize = 128;
/// Distance for weights that come from memory: 8 KiB.
const NEAR_FOLLOWING: usize = 2_048;
