//! NEON: up to four fused multiply-adds a cycle, four cycles each.

use std::arch::aarch64::{float32x4_t, vaddvq_f32, vdupq_n_f32, vfmaq_f32};
use std::hint::black_box;

use super::peak::Chains;

const CHAINS: usize = 16;

pub(super) const F32: Chains = Chains {
    run: fma,
    operations: CHAINS * 4 * 2,
    instruction: "fmla, 128 bits",
};

#[target_feature(enable = "neon")]
fn fma(turns: u64) -> f32 {
    let (a, b) = (vdupq_n_f32(black_box(1e-3)), vdupq_n_f32(black_box(0.25)));
    let mut sums: [float32x4_t; CHAINS] =
        std::array::from_fn(|chain| vdupq_n_f32(black_box(chain as f32)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = vfmaq_f32(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| vaddvq_f32(sum)).sum()
}
