//! Bits of products by the two kinds of tensor-core instructions that Hopper has.

use bytemuck::{Pod, Zeroable};

use crate::error::CudaError;
use crate::kernels;
use crate::runtime::{Buffer, Compiler, Module, Stream};

/// Architecture with the instruction wgmma, which later GPUs have no more.
pub(crate) const ARCHITECTURE: &str = "sm_90a";
/// Architecture for all GPUs of that generation, without the instruction.
const GENERATION: &str = "sm_90";
const THREADS: u32 = 128;
/// Rows and columns of a tile, as in `bits.cu`.
const TILE: usize = 64;
/// Tiles of operands, each with numbers of its own.
const TILES: usize = 32;
/// Columns that are multiplied.
const K: usize = 4096;
/// Exponents of the operands reach from 2 to the minus this to 2 to the plus this.
const SPREAD: i32 = 12;

/// Sums of products by wgmma, compared with the same sums by mma.sync.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComparedBits {
    /// Number of sums.
    pub sums: usize,
    /// Number of sums whose bits differ.
    pub different: usize,
    /// Largest difference, as a share of the largest sum.
    pub largest: f64,
    /// Columns that each sum multiplies.
    pub columns: usize,
}

/// `Bits` of `bits.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Parameters {
    x: u64,
    w: u64,
    by_mma: u64,
    by_wgmma: u64,
    k: u32,
    pad: u32,
}

impl ComparedBits {
    /// Multiplies random numbers with wide exponents, 16 columns at a time and ascending.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if the GPU has no wgmma; the errors of
    /// [`Compiler::compile`]; [`CudaError::Driver`]; [`CudaError::OutOfMemory`].
    pub(crate) fn measure(stream: &Stream, compiler: &Compiler) -> Result<Self, CudaError> {
        if compiler.architecture() != GENERATION {
            return Err(CudaError::Unsupported(format!(
                "wgmma is an instruction of {ARCHITECTURE} alone, and this GPU has {}",
                compiler.architecture()
            )));
        }
        let context = stream.context();
        let code = compiler.compile_for(ARCHITECTURE, &kernels::BITS, &[])?;
        let kernel = Module::load(context, &code)?.kernel("compare_bits", THREADS, 0)?;
        let operand = |key: u64| -> Result<Buffer<u16>, CudaError> {
            let values: Vec<u16> = wide(key).take(TILES * TILE * K).collect();
            let mut buffer = Buffer::new(context, values.len(), "operands to compare")?;
            stream.upload(&values, &mut buffer)?;
            Ok(buffer)
        };
        let (x, w) = (operand(1)?, operand(2)?);
        let sums = || Buffer::<f32>::new(context, TILES * TILE * TILE, "sums to compare");
        let (by_mma, by_wgmma) = (sums()?, sums()?);
        let parameters = Parameters {
            x: x.address(),
            w: w.address(),
            by_mma: by_mma.address(),
            by_wgmma: by_wgmma.address(),
            k: K as u32,
            pad: 0,
        };
        // SAFETY: all arrays have as many tiles as there are blocks.
        unsafe { kernel.launch(stream, [TILES as u32, 1, 1], &parameters) }?;
        let read = |from: &Buffer<f32>| -> Result<Vec<f32>, CudaError> {
            let mut sums = vec![0.0; from.len()];
            stream.download(from, &mut sums)?;
            Ok(sums)
        };
        Ok(Self::of(&read(&by_mma)?, &read(&by_wgmma)?))
    }

    /// Compares sums.
    fn of(by_mma: &[f32], by_wgmma: &[f32]) -> Self {
        let pairs = || by_mma.iter().zip(by_wgmma);
        let most = by_mma
            .iter()
            .fold(0f64, |most, sum| most.max(sum.abs().into()));
        let apart = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs();
        // Not a number is as far away as can be.
        let apart = pairs().map(|pair| match apart(pair) {
            apart if apart.is_finite() => apart / most.max(f64::MIN_POSITIVE),
            _ => f64::MAX,
        });
        Self {
            sums: by_mma.len(),
            different: pairs().filter(|(a, b)| a.to_bits() != b.to_bits()).count(),
            largest: apart.fold(0.0, f64::max),
            columns: K,
        }
    }
}

/// Numbers in bfloat16 with random signs, exponents and digits.
fn wide(key: u64) -> impl Iterator<Item = u16> {
    let mut state = key;
    std::iter::repeat_with(move || {
        // splitmix64 (Steele, Lea & Flood, OOPSLA 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let exponent = 127 - SPREAD + (bits >> 8 & 0xffff) as i32 % (2 * SPREAD + 1);
        ((bits & 1) << 15) as u16 | (exponent as u16) << 7 | (bits >> 40) as u16 & 0x7f
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_have_wide_exponents_and_both_signs() {
        let values: Vec<u16> = wide(1).take(4096).collect();
        let exponents = values.iter().map(|bits| i32::from(bits >> 7 & 0xff) - 127);
        let (least, most) = (exponents.clone().min(), exponents.max());
        assert_eq!((least, most), (Some(-SPREAD), Some(SPREAD)));
        let negative = values.iter().filter(|bits| **bits >> 15 == 1).count();
        assert!((1000..3000).contains(&negative), "{negative}");
        assert!(wide(2).take(4096).ne(values));
    }

    #[test]
    fn every_differing_bit_is_counted() {
        let sums = [1.0f32, -2.0, 0.0, 4.0];
        let same = ComparedBits::of(&sums, &sums);
        assert_eq!((same.sums, same.different, same.largest), (4, 0, 0.0));
        let other = ComparedBits::of(&sums, &[1.0, -2.0, -0.0, 5.0]);
        assert_eq!((other.different, other.largest), (2, 0.25));
        let lost = ComparedBits::of(&sums, &[f32::NAN, -2.0, 0.0, 4.0]);
        assert_eq!((lost.different, lost.largest), (1, f64::MAX));
    }
}
