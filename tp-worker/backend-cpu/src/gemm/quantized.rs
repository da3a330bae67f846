//! Tiles of integer weights: exact integer sums inside a group of inputs, f32
//! over the groups, in order.
//!
//! A step of a panel is one [`GROUP`] of inputs. Weights are unsigned with an offset, as
//! `vpdpbusd` requires. A row's words carry the number that undoes the offset
//! ([`crate::quantize`]). So every instruction set's sum of a group is the same integer, and
//! with one fused multiply-add per group the same f32.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(any(test, target_arch = "x86_64"))]
mod amx_emulated;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(any(test, target_arch = "x86_64"))]
mod blocks;
mod int4;
mod int8;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
#[cfg(test)]
mod tests;
mod widen;

pub(crate) use int4::STEP_WORDS as INT4_WORDS;
pub(crate) use int8::STEP_WORDS as INT8_WORDS;
pub(super) use widen::widen;

use super::prefetch::Asking;
use super::tile::{LANES, PANEL, Tile};
use super::tiles::Tiles;
use crate::isa::Isa;
use crate::quantize::{ROW_WORDS, SCALE_WORD};

/// Rows from which on AMX's tiles multiply 8-bit weights. Tiles take as long for fewer rows,
/// with which vectors keep up with the memory.
#[cfg(target_arch = "x86_64")]
const INT8_TILES_FROM: usize = 16;
/// Rows from which on AMX's tiles multiply 4-bit weights, which they widen once for all
/// rows.
#[cfg(target_arch = "x86_64")]
const INT4_TILES_FROM: usize = 10;

/// Distance, in words ahead of the current ones, at which weights are brought into the
/// first-level cache. Where several panels stream they come from memory.
#[inline(always)]
pub(super) fn near(panels: usize, asking: &Asking) -> usize {
    if panels == 1 { asking.near } else { 1_024 }
}

/// Integer arithmetic on 16 lanes, one per column, in one instruction set.
///
/// # Safety
/// The methods use instructions of that set: call them only, inlined, from a
/// function compiled for it, with pointers valid for what they read: 16
/// elements, or one where a value goes to all lanes.
pub(super) trait Lanes {
    /// 16 words: i32, or four u8 each.
    type Words: Copy;
    /// Four signed bytes, the same in all lanes.
    type Bytes: Copy;
    /// 16 f32.
    type Floats: Copy;
    unsafe fn words(from: *const u32) -> Self::Words;
    unsafe fn bytes(from: *const u32) -> Self::Bytes;
    /// Start of a sum: the i32 that undoes the weights' offset, in all lanes, or zero where
    /// [`Self::int8`] removes the offset.
    unsafe fn start(undo: *const u32) -> Self::Words;
    /// Converts weights stored with an offset of 128 to operands of [`Self::dot`].
    unsafe fn int8(words: Self::Words) -> Self::Words;
    /// Converts four and four weights, stored with an offset of 8 in the low and high halves
    /// of bytes, to operands of [`Self::dot`].
    unsafe fn int4(words: Self::Words) -> [Self::Words; 2];
    /// Adds the four products of each lane's bytes, exactly.
    unsafe fn dot(sum: Self::Words, weights: Self::Words, inputs: Self::Bytes) -> Self::Words;
    /// The bf16 in the low (half 0) or high half of each word.
    unsafe fn bf16(words: Self::Words, half: usize) -> Self::Floats;
    /// The signed 5 bits from bit `5 · part` on.
    unsafe fn multipliers(words: Self::Words, part: usize) -> Self::Words;
    /// `sum + product · multiplier`, where product and multiplier fit 16 bits.
    unsafe fn add_multiple(
        sum: Self::Words,
        product: Self::Words,
        multiplier: Self::Words,
    ) -> Self::Words;
    /// The positive float in the highest 12 bits, 4 of them its mantissa.
    unsafe fn float12(words: Self::Words) -> Self::Floats;
    unsafe fn no_words() -> Self::Words;
    unsafe fn zero() -> Self::Floats;
    unsafe fn load(from: *const f32) -> Self::Floats;
    unsafe fn store(to: *mut f32, floats: Self::Floats);
    /// `acc + sum · (scale · factor)`: one product, then one fused multiply-add.
    unsafe fn add_scaled(
        acc: Self::Floats,
        sum: Self::Words,
        scale: Self::Floats,
        factor: *const f32,
    ) -> Self::Floats;
}

/// Layout of a step of weights, and its multiplication.
///
/// # Safety
/// The conditions of [`Lanes`]; the pointers are valid for a step of `M` rows and of `P`
/// panels, `stride` words apart.
trait Format {
    /// Words of a step of a panel.
    const STEP_WORDS: usize;
    /// A group's integer sums, `H` halves of each panel from `half` on. A single panel asks
    /// for the next slice meanwhile.
    unsafe fn sums<L: Lanes, const M: usize, const P: usize, const H: usize>(
        a: *const u32,
        b: *const u32,
        stride: usize,
        half: usize,
        asking: &mut Asking,
    ) -> [[[L::Words; H]; M]; P];
    /// The scales of the 16 columns of one half of a panel.
    unsafe fn scales<L: Lanes>(b: *const u32, half: usize) -> L::Floats;
}

/// Operands of a step: those of the first row and of the first panel.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub a: *const u32,
    pub b: *const u32,
    pub work: &'a Tile,
    /// First half of a panel.
    pub half: usize,
}

/// Weights of which a step is added to sums in f32.
pub(super) trait Step<L: Lanes> {
    /// Words of a step of a panel.
    fn step_words(work: &Tile) -> usize;
    /// Words of a step of a row.
    fn row_words(work: &Tile) -> usize;
    /// Adds a step of `M` rows times `H` halves of each of `P` panels.
    ///
    /// # Safety
    /// The conditions of [`Lanes`]; the place is that of a step of `M` rows and `P` panels.
    unsafe fn add<const M: usize, const P: usize, const H: usize>(
        acc: &mut [[[L::Floats; H]; M]; P],
        place: Place<'_>,
        asking: &mut Asking,
    );
}

/// Weights with one scale for each column of a step.
impl<L: Lanes, F: Format> Step<L> for F {
    #[inline(always)]
    fn step_words(_: &Tile) -> usize {
        F::STEP_WORDS
    }

    #[inline(always)]
    fn row_words(_: &Tile) -> usize {
        ROW_WORDS
    }

    #[inline(always)]
    unsafe fn add<const M: usize, const P: usize, const H: usize>(
        acc: &mut [[[L::Floats; H]; M]; P],
        place: Place<'_>,
        asking: &mut Asking,
    ) {
        let Place { a, b, work, half } = place;
        let stride = work.panel_stride;
        // SAFETY: the caller's promise.
        unsafe {
            let sums = F::sums::<L, M, P, H>(a, b, stride, half, asking);
            let factors = a.add(SCALE_WORD * M).cast::<f32>();
            for p in 0..P {
                for h in 0..H {
                    let scales = F::scales::<L>(b.add(p * stride), half + h);
                    for r in 0..M {
                        let (acc, sum) = (&mut acc[p][r][h], sums[p][r][h]);
                        *acc = L::add_scaled(*acc, sum, scales, factors.add(r));
                    }
                }
            }
        }
    }
}

/// `M` rows times `P` panels, `H` halves of a panel at a time.
///
/// # Safety
/// The conditions of [`Lanes`]; `work`'s pointers are valid for the shape it describes.
#[inline(always)]
pub(super) unsafe fn tile<F: Step<L>, L: Lanes, const M: usize, const P: usize, const H: usize>(
    work: &Tile,
) {
    for half in (0..2).step_by(H) {
        // SAFETY: forwarded to the caller.
        unsafe { halves::<F, L, M, P, H>(work, half) };
    }
}

#[inline(always)]
unsafe fn halves<F: Step<L>, L: Lanes, const M: usize, const P: usize, const H: usize>(
    work: &Tile,
    half: usize,
) {
    // SAFETY: forwarded to the caller; offsets stay within the described shape.
    unsafe {
        let mut acc = [[[L::zero(); H]; M]; P];
        let at = |p: usize, r: usize, h: usize| {
            work.c.add(r * work.ldc + p * PANEL + (half + h) * LANES)
        };
        if work.resume {
            for p in 0..P {
                for r in 0..M {
                    for h in 0..H {
                        acc[p][r][h] = L::load(at(p, r, h));
                    }
                }
            }
        }
        let (mut a, mut b) = (work.a, work.b);
        let mut asking = work.ahead.asking();
        for _ in 0..work.steps {
            let place = Place { a, b, work, half };
            F::add::<M, P, H>(&mut acc, place, &mut asking);
            a = a.add(M * F::row_words(work));
            b = b.wrapping_add(F::step_words(work));
        }
        for p in 0..P {
            for r in 0..M {
                for h in 0..H {
                    L::store(at(p, r, h), acc[p][r][h]);
                }
            }
        }
    }
}

/// Tiles, and the number of rows from which on they are used.
type ByRows = &'static [(usize, &'static Tiles)];

/// Kernels of one instruction set.
struct Kernels {
    name: &'static str,
    /// The backend's instruction set from which on these kernels are used.
    isa: Isa,
    runs: fn() -> bool,
    int8: ByRows,
    int4: ByRows,
}

/// All kernels, from the plainest to the fastest.
static KERNELS: &[Kernels] = &[
    Kernels {
        name: "scalar",
        isa: Isa::Scalar,
        runs: || true,
        int8: &[(1, &scalar::INT8)],
        int4: &[(1, &scalar::INT4)],
    },
    #[cfg(target_arch = "aarch64")]
    Kernels {
        name: "neon",
        isa: Isa::Neon,
        runs: || Isa::Neon.is_available(),
        int8: &[(1, &neon::INT8)],
        int4: &[(1, &neon::INT4)],
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx2",
        isa: Isa::Avx2,
        runs: || Isa::Avx2.is_available(),
        int8: &[(1, &avx2::INT8_PLAIN)],
        int4: &[(1, &avx2::INT4_PLAIN)],
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx-vnni",
        isa: Isa::Avx2,
        runs: || Isa::Avx2.is_available() && std::arch::is_x86_feature_detected!("avxvnni"),
        int8: &[(1, &avx2::INT8_VNNI)],
        int4: &[(1, &avx2::INT4_VNNI)],
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512",
        isa: Isa::Avx512,
        runs: || Isa::Avx512.is_available(),
        int8: &[(1, &avx512::INT8_PLAIN)],
        int4: &[(1, &avx512::INT4_PLAIN)],
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512-vnni",
        isa: Isa::Avx512,
        runs: || Isa::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512vnni"),
        int8: &[(1, &avx512::INT8_VNNI)],
        int4: &[(1, &avx512::INT4_VNNI)],
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512-vnni",
        isa: Isa::Avx512Bf16,
        runs: || {
            Isa::Avx512Bf16.is_available() && std::arch::is_x86_feature_detected!("avx512vnni")
        },
        int8: &[(1, &avx512::INT8_VNNI_ONE_BY_ONE)],
        int4: &[(1, &avx512::INT4_VNNI_ONE_BY_ONE)],
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "amx-emulated",
        isa: Isa::AmxEmulated,
        runs: || Isa::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512vnni"),
        int8: &[
            (1, &avx512::INT8_VNNI),
            (INT8_TILES_FROM, &amx_emulated::vnni::INT8),
        ],
        int4: &[
            (1, &avx512::INT4_VNNI),
            (INT4_TILES_FROM, &amx_emulated::vnni::INT4),
        ],
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "amx",
        isa: Isa::Amx,
        runs: || Isa::Amx.is_available() && std::arch::is_x86_feature_detected!("avx512vnni"),
        int8: &[(1, &avx512::INT8_VNNI), (INT8_TILES_FROM, &amx::INT8)],
        int4: &[(1, &avx512::INT4_VNNI), (INT4_TILES_FROM, &amx::INT4)],
    },
];

/// The fastest kernels that this machine runs, up to those of `isa`.
fn kernels(isa: Isa) -> &'static Kernels {
    let fit = |kernels: &&Kernels| kernels.isa <= isa && (kernels.runs)();
    KERNELS.iter().rev().find(fit).unwrap_or(&KERNELS[0])
}

/// The tiles that multiply `rows` rows by 8-bit weights.
pub(crate) fn int8(isa: Isa, rows: usize) -> &'static Tiles {
    by_rows(kernels(isa).int8, rows)
}

/// The tiles that multiply `rows` rows by 4-bit weights.
pub(crate) fn int4(isa: Isa, rows: usize) -> &'static Tiles {
    by_rows(kernels(isa).int4, rows)
}

fn by_rows(tables: ByRows, rows: usize) -> &'static Tiles {
    let fits = |(from, _): &&(usize, &'static Tiles)| *from <= rows;
    let found = tables.iter().rfind(fits).unwrap_or(&tables[0]);
    found.1
}

/// The instruction set that quantized weights are multiplied with, for people.
pub(crate) fn describe(isa: Isa) -> &'static str {
    kernels(isa).name
}
