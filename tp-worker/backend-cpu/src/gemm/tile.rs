//! The one inner loop of all matrix products: `M` rows times `P` panels of 32 columns.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use super::layout::Layout;
pub(crate) use super::panel::{LANES, PANEL};
use super::prefetch::{Ahead, STREAMS};
use crate::prefetch;

/// Distance in steps at which weights are brought into the first-level cache while several
/// panels stream from memory.
const NEAR_STREAM: usize = 16;

/// One tile of work. A *step* of a panel is defined by [`super::tiles::Element`]. For f32
/// and bf16 it is 32 times 4 bytes: one f32, or two consecutive bf16 values with the earlier
/// one in the low half. Rows hold the same values in the form of [`super::tiles::Input`].
pub(crate) struct Tile {
    /// Rows, `[steps][words of a step][M]`.
    pub a: *const u32,
    /// First panel, `[steps][words of a step]`.
    pub b: *const u32,
    /// Elements from one panel to the next.
    pub panel_stride: usize,
    pub steps: usize,
    /// Factors of a column in a step, for the tiles of [`super::fp8`].
    pub scales: usize,
    /// Layout of a step, for the tiles of [`super::groups`].
    pub layout: &'static Layout,
    /// Result: row `r`, panel `p`, column `j` lies at `c[r·ldc + 32·p + j]`.
    pub c: *mut f32,
    pub ldc: usize,
    /// True to continue the sums in `c` instead of starting at zero.
    pub resume: bool,
    /// Memory to ask for meanwhile.
    pub ahead: Ahead,
    /// The place where the tile keeps its sums while it writes `c` past all caches; `None`
    /// if it may not.
    pub aside: Option<Aside>,
}

/// Place of sums until they are complete. Rows of a wide matrix share few places of a cache,
/// and many rows are too large for it.
#[derive(Clone, Copy)]
pub(crate) struct Aside {
    /// Rows of a panel one behind the other, which the next slice resumes; null where there
    /// is one slice.
    pub sums: *mut f32,
    /// True for the last slice.
    pub complete: bool,
}

/// A compiled [`tile`].
pub(crate) type TileFn = unsafe fn(&Tile);

/// Multiply-accumulate on 16 lanes, in one instruction set.
///
/// # Safety
/// The methods use instructions of that set: call them only, inlined, from a
/// function compiled for it, with pointers valid for the 16 elements they touch.
pub(crate) trait Dot {
    /// 4-byte inputs of a row for each step; a step of columns is multiplied in as many
    /// parts.
    const INPUTS: usize;
    /// 16 f32 sums.
    type Acc: Copy;
    /// One input of one row, for all lanes.
    type A: Copy;
    /// One part of one step of 16 columns.
    type B: Copy;
    unsafe fn zero() -> Self::Acc;
    unsafe fn load(from: *const f32) -> Self::Acc;
    unsafe fn store(to: *mut f32, acc: Self::Acc);
    unsafe fn a(from: *const u32) -> Self::A;
    unsafe fn b(from: *const u32, part: usize) -> Self::B;
    unsafe fn dot(acc: Self::Acc, a: Self::A, b: Self::B) -> Self::Acc;
}

/// `M` rows times `P` panels, `H` halves of a panel at a time. `H` is 2 where registers hold
/// all sums, else 1.
///
/// Sums step after step into one accumulator per element: the order of
/// additions does not depend on `M`, `P`, `H` or how the steps are cut into calls.
///
/// # Safety
/// The conditions of [`Dot`]; `tile`'s pointers are valid for the shape it describes.
#[inline(always)]
pub(crate) unsafe fn tile<D: Dot, const M: usize, const P: usize, const H: usize>(tile: &Tile) {
    for half in (0..2).step_by(H) {
        // SAFETY: forwarded to the caller.
        unsafe { halves::<D, M, P, H>(tile, half * LANES) };
    }
}

/// Computes the columns from `column` on, `16 · H` of each panel.
#[inline(always)]
unsafe fn halves<D: Dot, const M: usize, const P: usize, const H: usize>(
    tile: &Tile,
    column: usize,
) {
    // SAFETY: forwarded to the caller; offsets stay within the described shape,
    // and prefetching past the end touches nothing.
    unsafe {
        let mut acc = [[[D::zero(); H]; M]; P];
        let c = tile.c.add(column);
        if tile.resume {
            for p in 0..P {
                for r in 0..M {
                    for h in 0..H {
                        acc[p][r][h] = D::load(c.add(r * tile.ldc + p * PANEL + h * LANES));
                    }
                }
            }
        }
        let (mut a, mut b) = (tile.a, tile.b.wrapping_add(column));
        let mut asking = tile.ahead.asking();
        // The last steps of streaming panels ask for the first steps of the next panels.
        let last = if P == 1 {
            0
        } else {
            NEAR_STREAM.min(tile.steps)
        };
        let near = if P == 1 {
            asking.near
        } else {
            NEAR_STREAM * PANEL
        };
        let steps = tile.steps - last;
        // A step at a time would spend a tenth of the multiply-add's slots on counting.
        for _ in 0..steps / STREAMS {
            for run in 0..STREAMS {
                if P == 1 {
                    asking.ask(run);
                }
                let near = b.wrapping_add(near);
                step::<D, M, P, H>(&mut acc, a, b, near, tile.panel_stride);
                a = a.add(M * D::INPUTS);
                b = b.wrapping_add(PANEL);
            }
            asking.next();
        }
        for _ in 0..steps % STREAMS {
            let near = b.wrapping_add(near);
            step::<D, M, P, H>(&mut acc, a, b, near, tile.panel_stride);
            a = a.add(M * D::INPUTS);
            b = b.wrapping_add(PANEL);
        }
        let mut near = tile.ahead.from.wrapping_add(column);
        for _ in 0..last {
            step::<D, M, P, H>(&mut acc, a, b, near, tile.panel_stride);
            a = a.add(M * D::INPUTS);
            b = b.wrapping_add(PANEL);
            near = near.wrapping_add(PANEL);
        }
        for p in 0..P {
            for r in 0..M {
                for h in 0..H {
                    D::store(c.add(r * tile.ldc + p * PANEL + h * LANES), acc[p][r][h]);
                }
            }
        }
    }
}

/// Adds one step of `M` rows and `P` panels; asks for the step of the same panels at `near`.
#[inline(always)]
unsafe fn step<D: Dot, const M: usize, const P: usize, const H: usize>(
    acc: &mut [[[D::Acc; H]; M]; P],
    a: *const u32,
    b: *const u32,
    near: *const u32,
    panel_stride: usize,
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        for p in 0..P {
            let panel = b.wrapping_add(p * panel_stride);
            for h in 0..H {
                prefetch::near(near.wrapping_add(p * panel_stride + h * LANES));
            }
            for part in 0..D::INPUTS {
                let mut columns = [D::b(panel, part); H];
                for h in 1..H {
                    columns[h] = D::b(panel.wrapping_add(h * LANES), part);
                }
                for r in 0..M {
                    let row = D::a(a.add(part * M + r));
                    for h in 0..H {
                        acc[p][r][h] = D::dot(acc[p][r][h], row, columns[h]);
                    }
                }
            }
        }
    }
}
