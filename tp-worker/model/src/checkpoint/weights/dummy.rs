//! Random tensors in place of a checkpoint.

use lockstep_backend::RandomNumbers;

/// Standard deviation of biases, and of norms around one.
const VECTORS: f32 = 0.02;

/// Returns the random numbers of the matrix `name` with `inputs` columns. Their scale keeps
/// products about as large as the input, and logits about as large as one.
pub(super) fn matrix(name: &str, inputs: usize) -> RandomNumbers {
    RandomNumbers::new(key(name), 1.0 / (inputs.max(1) as f32).sqrt())
}

/// Returns the random vector `name`. Weights of norms are about one, other vectors about
/// zero.
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

/// Returns a number for the tensor `name` that is equal in all programs.
fn key(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(first)
}
