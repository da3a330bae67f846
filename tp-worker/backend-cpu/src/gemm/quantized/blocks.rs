//! Products of up to 32 rows with a separate unit for the integer sums of a group: AMX's
//! tiles, or their replacement.
//!
//! The unit leaves a group's sums in memory. Vectors then turn them into f32 and add them to
//! the sums of earlier groups, as all other kernels do. Unit and vectors work at the same
//! time: the unit gets its next group first.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null;

use super::int4::Int4;
use super::int8::Int8;
use super::{Format, INT4_WORDS, INT8_WORDS, Lanes, widen};
use crate::gemm::prefetch::{Ahead, STREAMS};
use crate::gemm::tile::{LANES, PANEL, Tile};
use crate::isa::Isa;
use crate::prefetch;
use crate::quantize::{BLOCK_ROW_WORDS, BLOCK_SCALE_WORD, BLOCK_UNDO_WORD};

/// Most rows of a block.
const ROWS: usize = 32;
/// Words of a group's sums, `[rows][32]`.
const SUMS: usize = ROWS * PANEL;
/// Rows whose sums are converted at a time.
const SOME: usize = 8;
/// Words of a cache line.
const LINE: usize = 16;
/// Distance in words from the current weights to the weights that are asked for in memory:
/// four groups of 8-bit weights.
const FAR: usize = 4_160;

/// A group of inputs of some rows, times the same group of a panel.
pub(super) struct Group {
    /// The inputs' integers, `[2][rows][16]` words.
    pub a: *const u32,
    /// The weights in the form of [`Int8`], offset included.
    pub b: *const u32,
    pub rows: usize,
    /// `[rows][32]`: products, with the weights' offset.
    pub sums: *mut u32,
    /// Weights and inputs to bring into the first-level cache meanwhile.
    pub near: *const u32,
    pub next: *const u32,
    /// Weights to bring from memory; null where other tiles have asked for them.
    pub far: *const u32,
}

/// A unit that computes the integer sums of a group.
///
/// # Safety
/// The conditions of [`Lanes`].
pub(super) trait Unit {
    /// Lanes that turn the sums into f32.
    type Lanes: Undo;
    /// Prepares for groups of `rows` rows.
    unsafe fn enter(rows: usize);
    /// Computes the sums of a group.
    unsafe fn sums(group: &Group);
}

/// Lanes that undo the offset of weights in sums.
///
/// # Safety
/// The conditions of [`Lanes`].
pub(super) trait Undo: Lanes {
    /// Adds the number that undoes the offset, the same in all lanes.
    unsafe fn undo(sums: Self::Words, undo: *const u32) -> Self::Words;
}

/// Weights that a unit reads, directly or after a conversion.
///
/// # Safety
/// The conditions of [`Format`].
pub(super) trait Weights: Format {
    /// A step in the form of [`Int8`], without its scales; the step may be in `room`.
    unsafe fn bytes(isa: Isa, step: *const u32, room: *mut u32) -> *const u32;
}

impl Weights for Int8 {
    #[inline(always)]
    unsafe fn bytes(_: Isa, step: *const u32, _: *mut u32) -> *const u32 {
        step
    }
}

impl Weights for Int4 {
    #[inline(always)]
    unsafe fn bytes(isa: Isa, step: *const u32, room: *mut u32) -> *const u32 {
        // SAFETY: the caller's promise: a step of weights, and room for it.
        unsafe {
            let narrow = std::slice::from_raw_parts(step, INT4_WORDS);
            widen(
                isa,
                narrow,
                std::slice::from_raw_parts_mut(room, INT8_WORDS),
            );
        }
        room
    }
}

/// A thread's working memory for a product, in its first-level cache.
#[repr(align(64))]
struct Room {
    sums: [[u32; SUMS]; 2],
    floats: [f32; SUMS],
    wide: [u32; INT8_WORDS],
}

/// Multiplies `rows` rows by one panel.
///
/// # Safety
/// The conditions of every tile, with `rows` rows of [`crate::gemm::Input::IntegerBlocks`].
#[inline(always)]
pub(super) unsafe fn product<U: Unit, W: Weights>(work: &Tile, rows: usize, isa: Isa) {
    let mut room = MaybeUninit::<Room>::uninit();
    let walk = Walk {
        work,
        rows,
        isa,
        room: room.as_mut_ptr(),
        asking: Asking::new(work, rows),
    };
    // SAFETY: forwarded to the caller; sums are read after they were written.
    unsafe {
        U::enter(rows);
        if work.steps == 0 && !work.resume {
            for row in 0..rows {
                let row = work.c.add(row * work.ldc);
                row.cast::<[f32; PANEL]>().write([0.0; PANEL]);
            }
        }
        // Rows of the result lie far apart, so nothing else brings them near. Where sums are
        // resumed, all rows are needed at once; otherwise one after the other until they are
        // stored.
        let each = match work.resume {
            true => rows,
            false => rows.div_ceil(work.steps.max(1)),
        };
        for step in 0..work.steps {
            (step * each..rows.min((step + 1) * each)).for_each(|row| walk.own(row));
            walk.multiply::<U, W>(step);
            if step > 0 {
                walk.convert::<U, W>(step - 1);
            }
        }
        if work.steps > 0 {
            walk.convert::<U, W>(work.steps - 1);
        }
    }
}

/// A product, and the state of the walk through its groups.
struct Walk<'a> {
    work: &'a Tile,
    rows: usize,
    isa: Isa,
    room: *mut Room,
    asking: Asking,
}

impl Walk<'_> {
    fn a(&self, step: usize) -> *const u32 {
        self.work.a.wrapping_add(step * self.rows * BLOCK_ROW_WORDS)
    }

    fn b<W: Weights>(&self, step: usize) -> *const u32 {
        self.work.b.wrapping_add(step * W::STEP_WORDS)
    }

    fn sums(&self, step: usize) -> *mut u32 {
        // SAFETY: the room has two places for sums.
        unsafe { (&raw mut (*self.room).sums[step % 2]).cast() }
    }

    /// Asks for a row of the result.
    #[inline(always)]
    fn own(&self, row: usize) {
        let row = self.work.c.wrapping_add(row * self.work.ldc);
        prefetch::own(row);
        prefetch::own(row.wrapping_add(LINE));
    }

    /// Has the unit compute a group's sums.
    #[inline(always)]
    unsafe fn multiply<U: Unit, W: Weights>(&self, step: usize) {
        // With few rows the weights behind in memory come next, with many another block of
        // rows.
        let streams = self.work.ahead.near == Ahead::FOLLOWING.near;
        let wrapped = (step + 1) % self.work.steps;
        let (near, next) = if streams {
            (step + 1, wrapped)
        } else {
            (wrapped, step + 1)
        };
        let b = self.b::<W>(step);
        // SAFETY: forwarded to the caller; the room has space for a step.
        unsafe {
            U::sums(&Group {
                a: self.a(step),
                b: W::bytes(self.isa, b, (&raw mut (*self.room).wide).cast()),
                rows: self.rows,
                sums: self.sums(step),
                near: self.b::<W>(near),
                next: self.a(next),
                far: if streams { b.wrapping_add(FAR) } else { null() },
            });
        }
    }

    /// Adds a group's sums to the sums in f32.
    #[inline(always)]
    unsafe fn convert<U: Unit, W: Weights>(&self, step: usize) {
        let Tile { c, ldc, steps, .. } = *self.work;
        // SAFETY: forwarded to the caller; rows and columns are those described.
        unsafe {
            let floats = (&raw mut (*self.room).floats).cast::<f32>();
            let sums = Sums {
                a: self.a(step),
                b: self.b::<W>(step),
                sums: self.sums(step),
                rows: self.rows,
                from: match step {
                    0 => self.work.resume.then_some((c.cast_const(), ldc)),
                    _ => Some((floats.cast_const(), PANEL)),
                },
                to: if step + 1 == steps {
                    (c, ldc)
                } else {
                    (floats, PANEL)
                },
            };
            for (part, first) in (0..self.rows).step_by(SOME).enumerate() {
                let rows = first..self.rows.min(first + SOME);
                self.asking.ask(step, part);
                sums.convert::<U, W>(rows);
            }
        }
    }
}

/// A group's sums, and the source and target of the sums in f32.
struct Sums {
    a: *const u32,
    b: *const u32,
    sums: *const u32,
    rows: usize,
    /// Start of the rows, and elements from one row to the next; `None` to begin at zero.
    from: Option<(*const f32, usize)>,
    to: (*mut f32, usize),
}

impl Sums {
    /// Converts some rows, at most [`SOME`].
    #[inline(always)]
    unsafe fn convert<U: Unit, W: Weights>(&self, rows: Range<usize>) {
        let mut row = rows.start;
        // SAFETY: forwarded to the caller.
        unsafe {
            if rows.len() == SOME {
                return self.rows::<U, W, SOME>(row);
            }
            if rows.len() & 4 != 0 {
                self.rows::<U, W, 4>(row);
                row += 4;
            }
            if rows.len() & 2 != 0 {
                self.rows::<U, W, 2>(row);
                row += 2;
            }
            if rows.len() & 1 != 0 {
                self.rows::<U, W, 1>(row);
            }
        }
    }

    /// Converts `R` rows from `row` on.
    #[inline(always)]
    unsafe fn rows<U: Unit, W: Weights, const R: usize>(&self, row: usize) {
        // SAFETY: forwarded to the caller.
        unsafe {
            let mut acc = [[U::Lanes::zero(); 2]; R];
            if let Some((from, stride)) = self.from {
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (half, acc) in acc.iter_mut().enumerate() {
                        *acc = U::Lanes::load(from.add((row + r) * stride + half * LANES));
                    }
                }
            }
            // An array and no `map`, which is not inlined: its closure would not be compiled
            // for the unit's instructions.
            let scales = [
                W::scales::<U::Lanes>(self.b, 0),
                W::scales::<U::Lanes>(self.b, 1),
            ];
            for (r, acc) in acc.iter_mut().enumerate() {
                let factor = self.a.add(BLOCK_SCALE_WORD * self.rows + row + r).cast();
                let undo = self.a.add(BLOCK_UNDO_WORD * self.rows + row + r);
                let sums = self.sums.add((row + r) * PANEL);
                for (half, acc) in acc.iter_mut().enumerate() {
                    let sum = U::Lanes::undo(U::Lanes::words(sums.add(half * LANES)), undo);
                    *acc = U::Lanes::add_scaled(*acc, sum, scales[half], factor);
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (half, acc) in acc.iter().enumerate() {
                    let to = self.to.0.add((row + r) * self.to.1 + half * LANES);
                    U::Lanes::store(to, *acc);
                }
            }
        }
    }
}

/// The part of the next slice that a product asks memory for, spread evenly.
struct Asking {
    from: *const u32,
    stride: usize,
    /// Lines for each group, and for some of its rows.
    lines: usize,
    at_a_time: usize,
}

impl Asking {
    fn new(work: &Tile, rows: usize) -> Self {
        let lines = match work.ahead.stride {
            0 => 0,
            _ => INT8_WORDS.div_ceil(LINE * work.ahead.parts),
        };
        Self {
            from: work.ahead.from,
            stride: work.ahead.stride,
            lines,
            at_a_time: lines.div_ceil(rows.div_ceil(SOME)),
        }
    }

    /// Asks for part `part` of a group's lines, which take turns among the runs.
    #[inline(always)]
    fn ask(&self, step: usize, part: usize) {
        let first = part * self.at_a_time;
        for line in first..self.lines.min(first + self.at_a_time) {
            let line = step * self.lines + line;
            let at = line % STREAMS * self.stride + line / STREAMS * LINE;
            prefetch::far(self.from.wrapping_add(at));
        }
    }
}

/// `blocks!(#[…] Unit, isa)`: tables of a unit's tiles, compiled for the features in the
/// attributes.
macro_rules! blocks {
    ($(#[$meta:meta])* $unit:ty, $isa:expr) => {
        blocks!(@ [$(#[$meta])*], $unit, $isa, int8, int8_rows, INT8, int8::Int8);
        blocks!(@ [$(#[$meta])*], $unit, $isa, int4, int4_rows, INT4, int4::Int4, INT8);
    };
    (@ [$(#[$meta:meta])*], $unit:ty, $isa:expr, $tile:ident, $rows:ident, $tiles:ident,
     $module:ident::$weights:ident $(, $widened:ident)?) => {
        $(#[$meta])*
        unsafe fn $tile<const M: usize, const P: usize, const H: usize>(
            work: &$crate::gemm::Tile,
        ) {
            // SAFETY: forwarded to the caller.
            unsafe { $rows(work, M) }
        }

        /// One body for every number of rows.
        #[inline(never)]
        $(#[$meta])*
        unsafe fn $rows(work: &$crate::gemm::Tile, rows: usize) {
            use $crate::gemm::quantized::{blocks, $module::$weights};
            // SAFETY: forwarded to the caller; compiled for the unit.
            unsafe { blocks::product::<$unit, $weights>(work, rows, $isa) }
        }

        pub(in super::super) static $tiles: Tiles = tiles!(
            IntegerBlocks, $tile:
            [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
             17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32],
            [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 : 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1],
            [1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1]
            $(, $widened)?
        );
    };
}

pub(super) use blocks;
