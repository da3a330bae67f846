//! Multiply-adds of the compiler's baseline.

use std::hint::black_box;

use super::peak::Chains;

const CHAINS: usize = 8;
/// Most elements of a baseline vector register.
const LANES: usize = 4;

pub(super) const F32: Chains = Chains {
    run: f32_chains,
    operations: CHAINS * LANES * 2,
    instruction: "multiply and add, no vector extension",
};

fn f32_chains(turns: u64) -> f32 {
    let (a, b) = (black_box(0.5f32), black_box(0.25f32));
    let mut sums: [[f32; LANES]; CHAINS] =
        std::array::from_fn(|chain| [black_box(chain as f32); LANES]);
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = sum.map(|sum| sum * a + b);
        }
    }
    sums.as_flattened().iter().sum()
}
