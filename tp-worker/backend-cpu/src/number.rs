//! Conversions between f32 and bf16, and packing of rows into 4-byte steps.

#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::gemm::{BLOCK_STEPS, Input};
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::quantize::{
    BLOCK_ROW_WORDS, BLOCK_SCALE_WORD, BLOCK_UNDO_WORD, GROUP, GROUP_WORDS, ROW_WORDS, SCALE_WORD,
    UNDO_INT8, quantize, quantize_parts,
};

/// Values converted at once: whole groups of quantized values.
const CHUNK: usize = 256;

/// `x` rounded to the nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        quiet
    } else {
        rounded
    }
}

/// Returns `x`, or a zero of the same sign if `x` is subnormal.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0f32.copysign(x)
    } else {
        x
    }
}

/// `x` as `vcvtne2ps2bf16` rounds it: subnormal numbers become zero.
#[inline(always)]
pub(crate) fn flushed_bf16_bits(x: f32) -> u32 {
    bf16_bits(flushed(x))
}

/// The f32 with the value of a bf16.
#[inline(always)]
pub(crate) fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

multiversion! {
    /// Rounds consecutive values to pairs of bf16; an odd last value is paired with 0.
    pub(crate) fn to_pairs(x: &[f32], pairs: &mut [u32]) {
        let halves = x.chunks_exact(2);
        if let ([last], Some(pair)) = (halves.remainder(), pairs.get_mut(x.len() / 2)) {
            *pair = bf16_bits(*last);
        }
        for (pair, half) in pairs.iter_mut().zip(halves) {
            *pair = bf16_bits(half[0]) | (bf16_bits(half[1]) << 16);
        }
    }
}

/// Rounds up to [`CHUNK`] consecutive values to pairs, in the way of the instruction set's
/// products. For tiles the processor's own instruction rounds them. It reads subnormal
/// numbers as zeros, as tiles do with rounded values.
fn to_operands(isa: Isa, x: &[f32], pairs: &mut [u32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a backend is built only for an instruction set this machine runs;
        // what has AMX has AVX-512 with bf16.
        Isa::Amx => unsafe { avx512::to_flushed_pairs(x, pairs) },
        Isa::AmxEmulated => {
            let mut values = [0.0; CHUNK];
            values
                .iter_mut()
                .zip(x)
                .for_each(|(value, &x)| *value = flushed(x));
            to_pairs(isa, &values[..x.len()], pairs);
        }
        _ => to_pairs(isa, x, pairs),
    }
}

multiversion! {
    /// Rounds values to pairs of bf16 that lie 4 apart, see [`Input::SplitPairs`]. Missing values
    /// are 0.
    fn to_split_pairs(x: &[f32], pairs: &mut [u32]) {
        let (runs, rest) = x.as_chunks::<8>();
        let (whole, last) = pairs.split_at_mut(4 * runs.len());
        for (run, pairs) in runs.iter().zip(whole.chunks_exact_mut(4)) {
            for (number, pair) in pairs.iter_mut().enumerate() {
                *pair = bf16_bits(run[number]) | (bf16_bits(run[number + 4]) << 16);
            }
        }
        last.fill(0);
        for (number, &x) in rest.iter().enumerate() {
            last[number % 4] |= bf16_bits(x) << (16 * (number / 4));
        }
    }
}

multiversion! {
    /// Rounds values to bf16.
    pub(crate) fn to_bf16(x: &[f32], out: &mut [u16]) {
        for (bits, &x) in out.iter_mut().zip(x) {
            *bits = bf16_bits(x) as u16;
        }
    }
}

multiversion! {
    /// Rounds values to bf16 but keeps them as f32.
    fn to_rounded(x: &[f32], out: &mut [u32]) {
        for (bits, &x) in out.iter_mut().zip(x) {
            *bits = bf16_bits(x) << 16;
        }
    }
}

/// Packs `row` as number `index` of `rows` rows. The rows' words take turns in `out` in runs
/// of [`Input::run`]. An odd last value of a format of pairs is paired with 0, and missing
/// values of a block are 0.
pub(crate) fn pack_row(
    isa: Isa,
    input: Input,
    row: &[f32],
    out: &mut [u32],
    index: usize,
    rows: usize,
) {
    let mut packed = [0u32; CHUNK];
    for (part, chunk) in row.chunks(CHUNK).enumerate() {
        let packed = &mut packed[..input.len(chunk.len())];
        match input {
            Input::F32 => packed.copy_from_slice(bytemuck::cast_slice(chunk)),
            Input::Pairs => to_operands(isa, chunk, packed),
            Input::SplitPairs => to_split_pairs(isa, chunk, packed),
            Input::Blocks => {
                to_operands(isa, chunk, packed);
                packed[chunk.len().div_ceil(2)..].fill(0);
            }
            Input::Rounded | Input::RoundedGroups => {
                to_rounded(isa, chunk, packed);
                packed[chunk.len()..].fill(0);
            }
            Input::Groups => {
                packed[..chunk.len()].copy_from_slice(bytemuck::cast_slice(chunk));
                packed[chunk.len()..].fill(0);
            }
            Input::Integers => quantize(isa, chunk, packed),
            Input::Parts(parts) => quantize_parts(isa, chunk, parts, packed),
            Input::IntegerBlocks => {
                let mut groups = [0; CHUNK / GROUP * ROW_WORDS];
                let groups = &mut groups[..Input::Integers.len(chunk.len())];
                quantize(isa, chunk, groups);
                let out = &mut out[part * input.len(CHUNK) * rows..];
                place_groups(groups, out, index, rows);
                continue;
            }
        }
        let run = input.run();
        let out = &mut out[part * input.len(CHUNK) * rows + index * run..];
        if run == 1 {
            let slots = out.iter_mut().step_by(rows);
            slots.zip(packed).for_each(|(slot, packed)| *slot = *packed);
        } else {
            // Of constant length, so that a block is copied without a call.
            let (packed, _) = packed.as_chunks::<BLOCK_STEPS>();
            for (packed, out) in packed.iter().zip(out.chunks_mut(rows * BLOCK_STEPS)) {
                out[..BLOCK_STEPS].copy_from_slice(packed);
            }
        }
    }
}

/// Puts a row's groups among the groups of `rows` rows, in the layout of
/// [`BLOCK_ROW_WORDS`].
fn place_groups(groups: &[u32], out: &mut [u32], index: usize, rows: usize) {
    let blocks = out.chunks_mut(BLOCK_ROW_WORDS * rows);
    for (group, out) in groups.chunks_exact(ROW_WORDS).zip(blocks) {
        let runs = group[..GROUP_WORDS].chunks_exact(BLOCK_STEPS);
        for (run, out) in runs.zip(out.chunks_exact_mut(BLOCK_STEPS * rows)) {
            out[index * BLOCK_STEPS..][..BLOCK_STEPS].copy_from_slice(run);
        }
        out[BLOCK_SCALE_WORD * rows + index] = group[SCALE_WORD];
        out[BLOCK_UNDO_WORD * rows + index] = group[UNDO_INT8];
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rounding_is_that_of_half(bits: u32) {
            let x = f32::from_bits(bits);
            let ours = bf16::from_bits(bf16_bits(x) as u16);
            prop_assert_eq!(ours.to_bits(), bf16::from_f32(x).to_bits());
            prop_assert_eq!(bf16_value(ours.to_bits()).to_bits(), ours.to_f32().to_bits());
        }

        #[test]
        fn blocks_of_integers_hold_the_same_groups(
            row in prop::collection::vec(-1e3f32..1e3, 1..700),
            rows in 1usize..33,
            index in any::<prop::sample::Index>(),
        ) {
            let (index, steps) = (index.index(rows), row.len().div_ceil(GROUP));
            let mut plain = vec![0u32; Input::Integers.len(row.len())];
            pack_row(Isa::Scalar, Input::Integers, &row, &mut plain, 0, 1);
            let mut naive = vec![0u32; Input::IntegerBlocks.len(row.len()) * rows];
            for step in 0..steps {
                let (group, out) = (&plain[step * ROW_WORDS..], &mut naive[step * 48 * rows..]);
                for word in 0..GROUP_WORDS {
                    out[word / 16 * 16 * rows + index * 16 + word % 16] = group[word];
                }
                out[32 * rows + index] = group[SCALE_WORD];
                out[33 * rows + index] = group[UNDO_INT8];
            }
            for isa in Isa::available() {
                let mut packed = vec![0u32; naive.len()];
                pack_row(isa, Input::IntegerBlocks, &row, &mut packed, index, rows);
                prop_assert_eq!(&packed, &naive);
            }
        }

        #[test]
        fn rows_are_packed_as_value_by_value(
            row in prop::collection::vec(bits().prop_map(f32::from_bits), 1..700),
            stride in 1usize..5,
        ) {
            for isa in Isa::available() {
                for input in [
                    Input::F32,
                    Input::Rounded,
                    Input::Groups,
                    Input::RoundedGroups,
                    Input::Pairs,
                    Input::SplitPairs,
                    Input::Blocks,
                ] {
                    let mut packed = vec![0u32; input.len(row.len()) * stride];
                    pack_row(isa, input, &row, &mut packed, 0, stride);
                    prop_assert_eq!(&packed, &naive(isa, input, &row, stride), "{}", isa);
                }
            }
        }
    }

    /// Any number, with many around the smallest that is not subnormal.
    fn bits() -> impl Strategy<Value = u32> {
        prop_oneof![
            any::<u32>(),
            0x007f_0000u32..0x0081_0000,
            0x807f_0000u32..0x8081_0000
        ]
    }

    /// A row packed value by value.
    fn naive(isa: Isa, input: Input, row: &[f32], stride: usize) -> Vec<u32> {
        let tiles = matches!(isa, Isa::Amx | Isa::AmxEmulated);
        let mut out = vec![0u32; input.len(row.len()) * stride];
        for (i, &x) in row.iter().enumerate() {
            let rounded = |x: f32| u32::from(bf16::from_f32(x).to_bits());
            let half = match x.is_subnormal() && tiles {
                true => rounded(0.0f32.copysign(x)),
                false => rounded(x),
            } << (16 * (i % 2));
            match input {
                Input::F32 | Input::Groups => out[i * stride] = x.to_bits(),
                Input::Rounded | Input::RoundedGroups => out[i * stride] = rounded(x) << 16,
                Input::Pairs => out[i / 2 * stride] |= half,
                Input::SplitPairs => {
                    out[(i / 8 * 4 + i % 4) * stride] |= rounded(x) << (16 * (i % 8 / 4));
                }
                Input::Blocks => out[i / 32 * stride * 16 + i % 32 / 2] |= half,
                Input::Integers | Input::IntegerBlocks | Input::Parts(_) => {}
            }
        }
        out
    }
}
