//! Replacement for AMX's tiles where there are none: sums of whole groups, from the same
//! inputs, by other instructions.

use std::marker::PhantomData;

use super::Lanes;
use super::blocks::{Group, Undo, Unit, blocks};
use crate::gemm::tile::{LANES, PANEL};
use crate::gemm::tiles::{Tiles, tiles};
use crate::isa::Isa;
use crate::quantize::GROUP_WORDS;

/// Words of a row in a tile of inputs.
const RUN: usize = 16;
/// Rows whose sums fit in registers.
const ROWS: usize = 4;

/// A unit made of lanes, which keep weights with their offset.
pub(super) struct Emulated<L>(PhantomData<L>);

impl<L: Undo> Unit for Emulated<L> {
    type Lanes = L;

    #[inline(always)]
    unsafe fn enter(_: usize) {}

    #[inline(always)]
    unsafe fn sums(group: &Group) {
        let Group {
            a, b, rows, sums, ..
        } = *group;
        for row in (0..rows).step_by(ROWS) {
            // SAFETY: forwarded to the caller.
            unsafe {
                let (a, sums) = (a.add(row * RUN), sums.add(row * PANEL));
                match rows - row {
                    1 => some::<L, 1>(a, b, rows, sums),
                    2 => some::<L, 2>(a, b, rows, sums),
                    3 => some::<L, 3>(a, b, rows, sums),
                    _ => some::<L, ROWS>(a, b, rows, sums),
                }
            }
        }
    }
}

/// Computes `R` of `rows` rows.
#[inline(always)]
unsafe fn some<L: Lanes, const R: usize>(
    a: *const u32,
    b: *const u32,
    rows: usize,
    sums: *mut u32,
) {
    // SAFETY: forwarded to the caller; lanes are 16 words in order.
    unsafe {
        let mut acc = [[L::no_words(); 2]; R];
        for word in 0..GROUP_WORDS {
            let weights = [0, LANES].map(|half| L::words(b.add(word * PANEL + half)));
            for (r, acc) in acc.iter_mut().enumerate() {
                let inputs = L::bytes(a.add((word / RUN * rows + r) * RUN + word % RUN));
                for (acc, weights) in acc.iter_mut().zip(weights) {
                    *acc = L::dot(*acc, weights, inputs);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            sums.add(r * PANEL)
                .cast::<[L::Words; 2]>()
                .write_unaligned(*acc);
        }
    }
}

/// The unit made of AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
pub(super) mod vnni {
    use super::super::avx512::Vnni;
    use super::{Emulated, Isa, Tiles, blocks, tiles};

    blocks!(
        #[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        Emulated<Vnni>,
        Isa::AmxEmulated
    );
}

/// The unit in plain Rust.
#[cfg(test)]
pub(super) mod scalar {
    use super::super::scalar::Scalar;
    use super::{Emulated, Isa, Tiles, blocks, tiles};

    blocks!(Emulated<Scalar>, Isa::Scalar);
}
