//! AVX-512: two fused multiply-adds a cycle at most, four cycles each.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_madd_epi16, _mm512_reduce_add_epi32, _mm512_reduce_add_ps, _mm512_set1_epi32,
    _mm512_set1_ps,
};
use std::hint::black_box;

use super::peak::Chains;

const CHAINS: usize = 16;

pub(super) const F32: Chains = Chains {
    run: fma,
    operations: CHAINS * 16 * 2,
    instruction: "vfmadd, 512 bits",
};

pub(super) const BF16: Chains = Chains {
    run: bf16_dot,
    operations: CHAINS * 32 * 2,
    instruction: "vdpbf16ps, 512 bits",
};

pub(super) const INT8: Chains = Chains {
    run: int8_dot,
    operations: CHAINS * 64 * 2,
    instruction: "vpdpbusd, 512 bits",
};

/// Loop without `vpdpbusd`: 8-bit integers are multiplied as 16-bit ones.
pub(super) const INT8_IN_PAIRS: Chains = Chains {
    run: int16_pairs,
    operations: CHAINS * 32 * 2,
    instruction: "vpmaddwd, 512 bits",
};

#[target_feature(enable = "avx512f")]
fn fma(turns: u64) -> f32 {
    let (a, b) = (
        _mm512_set1_ps(black_box(0.5)),
        _mm512_set1_ps(black_box(0.25)),
    );
    let mut sums: [__m512; CHAINS] =
        std::array::from_fn(|chain| _mm512_set1_ps(black_box(chain as f32)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_dot(turns: u64) -> f32 {
    // 0.5 and 0.25 in both halves.
    let (a, b) = (pairs(black_box(0x3f00_3f00)), pairs(black_box(0x3e80_3e80)));
    let mut sums: [__m512; CHAINS] =
        std::array::from_fn(|chain| _mm512_set1_ps(black_box(chain as f32)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[target_feature(enable = "avx512f")]
fn pairs(bits: i32) -> __m512bh {
    // SAFETY: both types are 64 bytes of plain data.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(bits)) }
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn int8_dot(turns: u64) -> f32 {
    let (a, b) = (
        _mm512_set1_epi32(black_box(0x0102_0304)),
        _mm512_set1_epi32(black_box(0x0403_0201)),
    );
    let mut sums: [__m512i; CHAINS] =
        std::array::from_fn(|chain| _mm512_set1_epi32(black_box(chain as i32)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, a, b);
        }
    }
    let sums = sums.into_iter().map(|sum| _mm512_reduce_add_epi32(sum));
    sums.fold(0, i32::wrapping_add) as f32
}

#[target_feature(enable = "avx512f,avx512bw")]
fn int16_pairs(turns: u64) -> f32 {
    let a = _mm512_set1_epi32(black_box(0x0003_0005));
    let mut products: [__m512i; CHAINS] =
        std::array::from_fn(|chain| _mm512_set1_epi32(black_box(chain as i32)));
    for _ in 0..turns {
        for product in &mut products {
            *product = _mm512_madd_epi16(*product, a);
        }
    }
    let sums = products.into_iter().map(|sum| _mm512_reduce_add_epi32(sum));
    sums.fold(0, i32::wrapping_add) as f32
}
