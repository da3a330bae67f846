//! Speed of multiplications in registers.

use std::fmt;
use std::hint::black_box;

use super::{Clock, Measured, PIECES, ROUNDS};
use crate::isa::Isa;
use crate::pool::Pool;

#[cfg(target_arch = "aarch64")]
use super::neon;
use super::scalar;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};

/// Fewest seconds of a round.
const ROUND: f64 = 3e-3;

/// Kinds of multiply-adds in which instruction sets differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// f32 multiply-add; also used for bf16 that is widened in registers.
    F32Fma,
    /// Dot products of bf16 pairs summed in f32 (`vdpbf16ps`, `tdpbf16ps`).
    Bf16Dot,
    /// Dot products of 8-bit integers summed in 32 bits (`vpdpbusd`, `tdpbssd`), or the
    /// widest multiplication that replaces them.
    Int8Dot,
}

impl Arithmetic {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::F32Fma, Self::Bf16Dot, Self::Int8Dot];
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32Fma => "f32 multiply-add",
            Self::Bf16Dot => "bf16 dot product",
            Self::Int8Dot => "int8 dot product",
        })
    }
}

/// A loop over independent chains of one instruction. There are more chains than the
/// instruction's latency times its throughput.
pub(super) struct Chains {
    /// Runs this number of turns; the result depends on all of them.
    ///
    /// # Safety
    /// The machine runs the loop's instruction set.
    pub run: unsafe fn(u64) -> f32,
    /// Operations in a turn.
    pub operations: usize,
    pub instruction: &'static str,
}

/// The loop for `arithmetic` in `isa`, made only of instructions that this machine runs.
fn chains(arithmetic: Arithmetic, isa: Isa) -> Option<Chains> {
    if !isa.is_available() {
        return None;
    }
    let tiles = isa == Isa::Amx && arithmetic != Arithmetic::F32Fma;
    let isa = if tiles { isa } else { isa.vectors() };
    match (arithmetic, isa) {
        (Arithmetic::F32Fma, Isa::Scalar) => Some(scalar::F32),
        #[cfg(target_arch = "aarch64")]
        (Arithmetic::F32Fma, Isa::Neon) => Some(neon::F32),
        #[cfg(target_arch = "aarch64")]
        (Arithmetic::Int8Dot, Isa::Neon) => Some(neon::INT8),
        #[cfg(target_arch = "x86_64")]
        (Arithmetic::Bf16Dot, Isa::Amx) => Some(amx::BF16),
        #[cfg(target_arch = "x86_64")]
        (Arithmetic::Int8Dot, Isa::Amx) => Some(amx::INT8),
        #[cfg(target_arch = "x86_64")]
        (_, Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16) => x86_chains(arithmetic, isa),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
fn x86_chains(arithmetic: Arithmetic, isa: Isa) -> Option<Chains> {
    use std::arch::is_x86_feature_detected as has;
    match (arithmetic, isa) {
        (Arithmetic::F32Fma, Isa::Avx2) => Some(avx2::F32),
        (Arithmetic::F32Fma, _) => Some(avx512::F32),
        (Arithmetic::Bf16Dot, Isa::Avx512Bf16) => Some(avx512::BF16),
        (Arithmetic::Bf16Dot, _) => None,
        (Arithmetic::Int8Dot, Isa::Avx2) if has!("avxvnni") => Some(avx2::INT8),
        (Arithmetic::Int8Dot, Isa::Avx2) => Some(avx2::INT8_IN_PAIRS),
        (Arithmetic::Int8Dot, _) if has!("avx512vnni") => Some(avx512::INT8),
        (Arithmetic::Int8Dot, _) => Some(avx512::INT8_IN_PAIRS),
    }
}

pub(super) fn measure(
    pool: &mut Pool,
    clock: Clock,
    arithmetic: Arithmetic,
    isa: Isa,
) -> Option<Measured> {
    let chains = chains(arithmetic, isa)?;
    let threads = pool.threads();
    let mut round = |turns: u64| {
        let start = clock.seconds();
        pool.for_chunks(threads * PIECES, |_, _| {
            // SAFETY: `chains` gives only loops that this machine runs.
            black_box(unsafe { (chains.run)(black_box(turns)) });
        });
        clock.seconds() - start
    };
    let mut turns = 100;
    while round(turns) < ROUND {
        turns *= 2;
    }
    let operations = (chains.operations * threads * PIECES) as f64 * turns as f64;
    let rates = (0..ROUNDS).map(|_| operations / round(turns)).collect();
    Some(Measured::of(rates, chains.instruction))
}
