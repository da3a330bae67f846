//! What stands in for a checkpoint where there is none.

use lockstep_backend::RandomNumbers;

/// The standard deviation of biases, and of norms around one.
const VECTORS: f32 = 0.02;

/// The numbers of the matrix `name` of `inputs` columns: products have about the size of
/// what is multiplied, and logits that of one.
pub(super) fn matrix(name: &str, inputs: usize) -> RandomNumbers {
    RandomNumbers::new(key(name), 1.0 / (inputs.max(1) as f32).sqrt())
}

/// The vector `name`: a norm's weights are about one, others about zero.
pub(super) fn vector(name: &str, len: usize) -> Vec<f32> {
    let numbers = RandomNumbers::new(key(name), VECTORS);
    let mean = if name.ends_with("norm.weight") {
        1.0
    } else {
        0.0
    };
    (0..len)
        .map(|index| mean + numbers.at(index).to_f32())
        .collect()
}

/// A number for the tensor `name`, the same in all programs.
fn key(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(first)
}
