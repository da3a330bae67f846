//! AVX2: two fused multiply-adds a cycle at most, four or five cycles each.

use std::arch::x86_64::{__m256, _mm256_add_ps, _mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
use std::hint::black_box;

use super::peak::Chains;

/// With the two factors, all but two of the sixteen registers.
const CHAINS: usize = 12;

pub(super) const F32: Chains = Chains {
    run: fma,
    operations: CHAINS * 8 * 2,
    instruction: "vfmadd, 256 bits",
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
