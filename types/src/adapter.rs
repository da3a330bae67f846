//! Adapters (LoRA) of the served model.

use lockstep_adaptive::Digest;
use serde::{Deserialize, Serialize};

/// A loaded adapter as a request uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Adapter {
    /// Number of its place in every worker, below [`AdapterLimits::places`].
    pub place: u16,
    /// Hash of the adapter's content: prefixes are shared by this, never by name.
    pub content: u128,
}

impl Adapter {
    /// Returns the low and the high 64 bits of the content's hash.
    pub fn content_halves(self) -> (u64, u64) {
        let low = u128::from(u64::MAX);
        let half = |bits: u128| u64::try_from(bits & low).unwrap_or(0);
        (half(self.content), half(self.content >> 64))
    }

    /// Folds the adapter into a digest by which ranks are compared.
    pub(crate) fn digest(self, digest: &mut Digest) {
        // The content is in the halves.
        let Self { place, content: _ } = self;
        let (low, high) = self.content_halves();
        digest.word(u64::from(place));
        digest.word(low);
        digest.word(high);
    }
}

/// Limits of adapters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterLimits {
    /// Number of adapters that may be in memory at once; 0 = none is served.
    pub places: u16,
    /// Largest rank of a matrix pair.
    pub rank: usize,
}
