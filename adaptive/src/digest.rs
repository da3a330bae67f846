//! A digest that tells different states apart.

/// 64-bit FNV-1a over words, with a final mix (Fowler, Noll & Vo; finalizer of MurmurHash3). It
/// finds accidents, not attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// Makes the digest of nothing.
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Takes in one word.
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }

    /// Takes in a list, its length first.
    pub fn list(&mut self, values: &[u32]) {
        self.word(values.len() as u64);
        for value in values {
            self.word(u64::from(*value));
        }
    }

    /// Takes in an optional value; `None` becomes `u64::MAX`, which no `u32` is.
    pub fn option(&mut self, value: Option<u32>) {
        self.word(value.map_or(u64::MAX, u64::from));
    }

    /// Returns the digest so far.
    pub fn value(self) -> u64 {
        let mut value = self.0;
        value = (value ^ value >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        value = (value ^ value >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        value ^ value >> 33
    }
}
