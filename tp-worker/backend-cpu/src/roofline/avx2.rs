//! AVX2: two fused multiply-adds a cycle at most, four or five cycles each.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi32, _mm256_add_ps, _mm256_cvtsi256_si32, _mm256_cvtss_f32,
    _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_set1_epi32, _mm256_set1_ps,
};
use std::hint::black_box;

use super::peak::Chains;

/// Sums at a time: with the two factors, all but two of the sixteen registers.
const CHAINS: usize = 12;

pub(super) const F32: Chains = Chains {
    run: fma,
    operations: CHAINS * 8 * 2,
    instruction: "vfmadd, 256 bits",
};

pub(super) const INT8: Chains = Chains {
    run: int8_dot,
    operations: CHAINS * 32 * 2,
    instruction: "vpdpbusd, 256 bits",
};

/// Loop without `vpdpbusd`: 8-bit integers are multiplied as 16-bit ones.
pub(super) const INT8_IN_PAIRS: Chains = Chains {
    run: int16_pairs,
    operations: CHAINS * 16 * 2,
    instruction: "vpmaddwd, 256 bits",
};

#[target_feature(enable = "avx2,fma")]
fn fma(turns: u64) -> f32 {
    let (a, b) = (
        _mm256_set1_ps(black_box(0.5)),
        _mm256_set1_ps(black_box(0.25)),
    );
    let mut sums: [__m256; CHAINS] =
        std::array::from_fn(|chain| _mm256_set1_ps(black_box(chain as f32)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    let [first, rest @ ..] = sums;
    _mm256_cvtss_f32(
        rest.into_iter()
            .fold(first, |total, sum| _mm256_add_ps(total, sum)),
    )
}

#[target_feature(enable = "avx2,avxvnni")]
fn int8_dot(turns: u64) -> f32 {
    let (a, b) = (
        _mm256_set1_epi32(black_box(0x0102_0304)),
        _mm256_set1_epi32(black_box(0x0403_0201)),
    );
    let mut sums: [__m256i; CHAINS] =
        std::array::from_fn(|chain| _mm256_set1_epi32(black_box(chain as i32)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
        }
    }
    total(sums)
}

#[target_feature(enable = "avx2")]
fn int16_pairs(turns: u64) -> f32 {
    let a = _mm256_set1_epi32(black_box(0x0003_0005));
    let mut products: [__m256i; CHAINS] =
        std::array::from_fn(|chain| _mm256_set1_epi32(black_box(chain as i32)));
    for _ in 0..turns {
        for product in &mut products {
            *product = _mm256_madd_epi16(*product, a);
        }
    }
    total(products)
}

#[target_feature(enable = "avx2")]
fn total([first, rest @ ..]: [__m256i; CHAINS]) -> f32 {
    let sum = rest
        .into_iter()
        .fold(first, |total, sum| _mm256_add_epi32(total, sum));
    _mm256_cvtsi256_si32(sum) as f32
}
