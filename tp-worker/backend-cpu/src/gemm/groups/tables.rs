//! Tables of the tiles of an instruction set.

use crate::gemm::layout::Layout;
use crate::gemm::tiles::{Input, Tiles};
use crate::quantize::Parts;

/// Tiles for codes of each kind.
pub(super) struct Tables {
    /// Integers of 4 bits that are stored as they are, and with an offset of 8.
    nibbles: [Counts; 2],
    /// Codes of 4 bits that are looked up.
    entries: Counts,
    /// Integers of 8 bits.
    bytes: Counts,
}

/// Tiles for 1, 2, 4 and 8 groups of a step.
type Counts = [Tiles; 4];

/// Returns tiles for every number of groups.
const fn counts(tiles: &Tiles, wide: bool, offset: i32) -> Counts {
    const fn of(tiles: &Tiles, wide: bool, count: usize, offset: i32) -> Tiles {
        tiles.with_input(Input::Parts(Parts {
            wide,
            count,
            offset,
        }))
    }
    [
        of(tiles, wide, 1, offset),
        of(tiles, wide, 2, offset),
        of(tiles, wide, 4, offset),
        of(tiles, wide, 8, offset),
    ]
}

impl Tables {
    /// Returns tables of the tiles of each kind of codes.
    pub(super) const fn new([nibbles, entries, bytes]: [&Tiles; 3]) -> Self {
        Self {
            nibbles: [counts(nibbles, false, 0), counts(nibbles, false, 8)],
            entries: counts(entries, false, 128),
            bytes: counts(bytes, true, 128),
        }
    }

    /// Returns the tiles for a layout.
    pub(super) fn of(&self, layout: &Layout) -> &Tiles {
        let counts = match (layout.is_wide(), layout.offset) {
            (true, _) => &self.bytes,
            (false, 0) => &self.nibbles[0],
            (false, 8) => &self.nibbles[1],
            (false, _) => &self.entries,
        };
        &counts[layout.groups.ilog2() as usize]
    }
}

/// `kernels!(name, #[…] Lanes, TABLES: 4-bit lists, 8-bit lists; …)`: a module with tables of the
/// tiles of an instruction set, compiled for the features in the attributes. The lists are those of
/// `tiles!`, for codes of 4 and of 8 bits.
macro_rules! kernels {
    ($name:ident, $(#[$meta:meta])* $lanes:ty,
     $($tables:ident: $narrow:tt $narrow_stream:tt $narrow_halves:tt,
       $wide:tt $wide_stream:tt $wide_halves:tt);+) => {
        pub(super) mod $name {
            use super::*;
            use $crate::gemm::groups::codes::{Bytes, Nibbles, Table};
            use $crate::gemm::groups::tables::{Tables, kernels};
            use $crate::gemm::groups::Groups;
            use $crate::gemm::quantized::tile;
            use $crate::gemm::tile::Tile;
            use $crate::gemm::tiles::{Tiles, tiles};

            kernels!(@ [$(#[$meta])*], $lanes, nibbles, Nibbles);
            kernels!(@ [$(#[$meta])*], $lanes, entries, Table);
            kernels!(@ [$(#[$meta])*], $lanes, bytes, Bytes);
            $(
                pub(in $crate::gemm::groups) static $tables: Tables = Tables::new([
                    &tiles!(Integers, nibbles: $narrow, $narrow_stream, $narrow_halves),
                    &tiles!(Integers, entries: $narrow, $narrow_stream, $narrow_halves),
                    &tiles!(Integers, bytes: $wide, $wide_stream, $wide_halves),
                ]);
            )+
        }
    };
    (@ [$(#[$meta:meta])*], $lanes:ty, $tile:ident, $codes:ident) => {
        $(#[$meta])*
        unsafe fn $tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
            // SAFETY: the caller's promise; compiled for the lanes.
            unsafe { tile::<Groups<$codes>, $lanes, M, P, H>(work) }
        }
    };
}

pub(super) use kernels;
