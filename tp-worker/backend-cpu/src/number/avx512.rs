//! Conversions by AVX-512 with bf16.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_storeu_si512,
};

use super::flushed_bf16_bits;

/// Values of a vector of bf16.
const VALUES: usize = 32;

/// Rounds consecutive values to pairs of bf16, and subnormal values to zeros. An odd last
/// value is paired with 0.
///
/// # Safety
/// The machine runs AVX-512 with bf16.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn to_flushed_pairs(x: &[f32], pairs: &mut [u32]) {
    let (parts, rest) = x.as_chunks::<VALUES>();
    let (vectors, last) = pairs.split_at_mut(parts.len() * VALUES / 2);
    for (part, vector) in parts.iter().zip(vectors.chunks_exact_mut(VALUES / 2)) {
        // SAFETY: compiled for these; both hold a vector's values.
        unsafe {
            let low = _mm512_loadu_ps(part.as_ptr());
            let high = _mm512_loadu_ps(part.as_ptr().add(VALUES / 2));
            let rounded = _mm512_cvtne2ps_pbh(high, low);
            let rounded = std::mem::transmute::<__m512bh, __m512i>(rounded);
            _mm512_storeu_si512(vector.as_mut_ptr().cast(), rounded);
        }
    }
    for (pair, values) in last.iter_mut().zip(rest.chunks(2)) {
        let second = values.get(1).map_or(0, |&second| flushed_bf16_bits(second));
        *pair = flushed_bf16_bits(values[0]) | second << 16;
    }
}
