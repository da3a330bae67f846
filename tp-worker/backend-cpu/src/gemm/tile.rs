//! The one inner loop of all matrix products: `M` rows times `P` panels of 32 columns.

/// Columns of a panel: two registers of 16 lanes.
pub(crate) const PANEL: usize = 32;
/// Lanes of an accumulator.
pub(crate) const LANES: usize = 16;
/// How far ahead of the current step weights are prefetched, in steps of 128 bytes.
const AHEAD: usize = 16;

/// One tile of work. A *step* is 4 bytes of a row and 32 times 4 bytes of a
/// panel: one f32, or two consecutive bf16 values with the earlier one in the
/// low half.
pub(crate) struct Tile {
    /// Rows, `[steps][M]`.
    pub a: *const u32,
    /// First panel, `[steps][32]`.
    pub b: *const u32,
    /// Elements from one panel to the next.
    pub panel_stride: usize,
    pub steps: usize,
    /// Result: row `r`, panel `p`, column `j` lies at `c[r·ldc + 32·p + j]`.
    pub c: *mut f32,
    pub ldc: usize,
    /// Continue the sums in `c` instead of starting at zero.
    pub resume: bool,
}

/// A compiled [`tile`].
pub(crate) type TileFn = unsafe fn(&Tile);

/// Multiply-accumulate over one step on 16 lanes, in one instruction set.
///
/// # Safety
/// The methods use instructions of that set: call them only, inlined, from a
/// function compiled for it, with pointers valid for the 16 elements they touch.
#[expect(clippy::missing_safety_doc, reason = "said once above for all methods")]
pub(crate) trait Dot {
    /// 16 f32 sums.
    type Acc: Copy;
    /// One step of one row, for all lanes.
    type A: Copy;
    /// One step of 16 columns.
    type B: Copy;
    unsafe fn zero() -> Self::Acc;
    unsafe fn load(from: *const f32) -> Self::Acc;
    unsafe fn store(to: *mut f32, acc: Self::Acc);
    unsafe fn a(from: *const u32) -> Self::A;
    unsafe fn b(from: *const u32) -> Self::B;
    unsafe fn dot(acc: Self::Acc, a: Self::A, b: Self::B) -> Self::Acc;
    unsafe fn prefetch(from: *const u32);
}

/// Sums step after step into one accumulator per element: the order of
/// additions does not depend on `M`, `P` or how the steps are cut into calls.
///
/// # Safety
/// As for [`Dot`]; `tile`'s pointers are valid for the shape it describes.
#[inline(always)]
pub(crate) unsafe fn tile<D: Dot, const M: usize, const P: usize>(tile: &Tile) {
    // SAFETY: forwarded to the caller; offsets stay within the described shape,
    // and prefetching past the end touches nothing.
    unsafe {
        let mut acc = [[[D::zero(); 2]; M]; P];
        if tile.resume {
            for p in 0..P {
                for r in 0..M {
                    let c = tile.c.add(r * tile.ldc + p * PANEL);
                    acc[p][r] = [D::load(c), D::load(c.add(LANES))];
                }
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        for _ in 0..tile.steps {
            for p in 0..P {
                let panel = b.wrapping_add(p * tile.panel_stride);
                D::prefetch(panel.wrapping_add(AHEAD * PANEL));
                D::prefetch(panel.wrapping_add(AHEAD * PANEL + LANES));
                let columns = [D::b(panel), D::b(panel.add(LANES))];
                for r in 0..M {
                    let row = D::a(a.add(r));
                    acc[p][r][0] = D::dot(acc[p][r][0], row, columns[0]);
                    acc[p][r][1] = D::dot(acc[p][r][1], row, columns[1]);
                }
            }
            a = a.add(M);
            b = b.wrapping_add(PANEL);
        }
        for p in 0..P {
            for r in 0..M {
                let c = tile.c.add(r * tile.ldc + p * PANEL);
                D::store(c, acc[p][r][0]);
                D::store(c.add(LANES), acc[p][r][1]);
            }
        }
    }
}
