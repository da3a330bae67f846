//! Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
//! 3", SC'11): random numbers as a function of a key and a counter.

/// The use of a random number. Each use of one output position has a stream of its own, so that
/// adding a use never changes another's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub u32);

impl Stream {
    /// Choosing a token.
    pub const SAMPLE: Self = Self(0);
    /// Deciding if a drafted token is accepted.
    pub const ACCEPT: Self = Self(1);
    /// Choosing a token from the rest of the distribution that rejected drafts leave.
    pub const RESIDUAL: Self = Self(2);
    /// Choosing a token to draft.
    pub const DRAFT: Self = Self(3);
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Returns the four words of `counter` under `key`.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..ROUNDS {
        if round > 0 {
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        let (high0, low0) = wide_product(MULTIPLIERS[0], c[0]);
        let (high1, low1) = wide_product(MULTIPLIERS[1], c[2]);
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0];
    }
    c
}

/// Returns the uniform number in `[0, 1)` of a request's output position. The key is `seed`,
/// the counter is (`position`, `stream`, `draw`), and 53 bits are random.
pub fn uniform(seed: u64, position: u64, stream: Stream, draw: u32) -> f64 {
    uniform_bits(seed, position, stream, draw) as f64 * (-53f64).exp2()
}

/// Returns the number of [`uniform`] as a multiple of 2⁻⁵³.
pub fn uniform_bits(seed: u64, position: u64, stream: Stream, draw: u32) -> u64 {
    let (position_low, position_high) = halves(position);
    let (seed_low, seed_high) = halves(seed);
    let words = philox4x32_10(
        [position_low, position_high, stream.0, draw],
        [seed_low, seed_high],
    );
    (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11
}

/// Returns the high and the low word of the 64-bit product.
fn wide_product(a: u32, b: u32) -> (u32, u32) {
    let (low, high) = halves(u64::from(a) * u64::from(b));
    (high, low)
}

/// Returns the low and the high word.
fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

#[cfg(test)]
mod tests;
