//! Plain Rust tiles of 4-bit floats.

use lockstep_backend::E2m1;

use super::{Expand, Kernels, tile, widen_steps};
use crate::gemm::fp8::Fused;
use crate::gemm::tile::{LANES, Tile};
use crate::gemm::tiles::{Tiles, tiles};

type Lanes = [f32; LANES];

/// Values of all codes: the negative ones come last.
pub(super) static VALUES: [f32; 16] = {
    let mut values = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        values[code] = E2m1(code as u8).value();
        code += 1;
    }
    values
};
/// Bits of the least power of two, 2⁻¹²⁷.
pub(super) const LEAST: u32 = 1 << 22;

impl Expand for Fused {
    type Codes = [u32; LANES];

    #[inline(always)]
    unsafe fn codes(from: *const u32) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u32; LANES]>().read() }
    }

    #[inline(always)]
    unsafe fn powers(from: *const u8) -> Lanes {
        // SAFETY: the caller's promise.
        let exponents = unsafe { from.cast::<[u8; LANES]>().read() };
        exponents.map(|exponent| f32::from_bits((u32::from(exponent) << 23).max(LEAST)))
    }

    #[inline(always)]
    unsafe fn values(codes: [u32; LANES], powers: Lanes) -> Lanes {
        std::array::from_fn(|lane| VALUES[(codes[lane] & 15) as usize] * powers[lane])
    }

    #[inline(always)]
    unsafe fn next(codes: [u32; LANES]) -> [u32; LANES] {
        codes.map(|codes| codes >> 4)
    }
}

unsafe fn mxfp4_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; plain Rust needs no instruction set.
    unsafe { tile::<Fused, M, P, H>(work) }
}

unsafe fn widen(narrow: &[u32], wide: &mut [u32]) {
    // SAFETY: as above.
    unsafe { widen_steps::<Fused>(narrow, wide) }
}

static EXACT: Tiles = tiles!(Groups, mxfp4_tile: [1 2], [:], [2 1]);
static ROUNDED: Tiles = tiles!(RoundedGroups, mxfp4_tile: [1 2], [:], [2 1]);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT, &ROUNDED],
    widen,
    widen_rounded: None,
};
