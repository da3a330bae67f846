//! NEON: up to four fused multiply-adds a cycle, four cycles each.

use std::arch::aarch64::{
    float32x4_t, int8x8_t, vaddv_s8, vaddvq_f32, vdup_n_s8, vdupq_n_f32, vfmaq_f32, vget_low_s8,
    vmull_s8, vreinterpretq_s8_s16,
};
use std::hint::black_box;

use super::peak::Chains;

const CHAINS: usize = 16;

pub(super) const F32: Chains = Chains {
    run: fma,
    operations: CHAINS * 4 * 2,
    instruction: "fmla, 128 bits",
};

/// Loop of the multiplication of 8-bit integers that every aarch64 has.
pub(super) const INT8: Chains = Chains {
    run: int8_products,
    operations: CHAINS * 8 * 2,
    instruction: "smull, 8 bytes",
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

#[target_feature(enable = "neon")]
fn int8_products(turns: u64) -> f32 {
    let a = vdup_n_s8(black_box(3));
    let mut products: [int8x8_t; CHAINS] =
        std::array::from_fn(|chain| vdup_n_s8(black_box(chain as i8)));
    for _ in 0..turns {
        for product in &mut products {
            *product = vget_low_s8(vreinterpretq_s8_s16(vmull_s8(*product, a)));
        }
    }
    let sums = products
        .into_iter()
        .map(|product| i32::from(vaddv_s8(product)));
    sums.sum::<i32>() as f32
}
