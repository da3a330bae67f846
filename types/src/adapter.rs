//! Adapters (LoRA) of the served model.

use std::path::PathBuf;

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

/// An adapter that is loaded at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedAdapter {
    /// Name by which requests ask for it.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
}

/// Most bytes of an adapter's name.
pub const ADAPTER_NAME_BYTES: usize = 128;

/// Checks that `name` can be an adapter's: one to [`ADAPTER_NAME_BYTES`] letters, digits and
/// `. _ - / @ +`. A colon is none of them, since `MODEL:NAME` asks for an adapter too.
///
/// # Errors
/// The rule, as the end of a sentence about the name.
pub fn check_adapter_name(name: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/@+".contains(&byte);
    let fits = (1..=ADAPTER_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed);
    fits.then_some(())
        .ok_or("must be 1 to 128 ASCII letters, digits and characters of ._-/@+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        let longest = "x".repeat(ADAPTER_NAME_BYTES);
        for name in ["a", "org/sql-lora_v1.2@main+x", &longest] {
            assert_eq!(check_adapter_name(name), Ok(()), "{name}");
        }
        let longer = "x".repeat(ADAPTER_NAME_BYTES + 1);
        for name in [
            "", " ", "a b", "a:b", "a=b", "a\n", "ä", "a\"b", "a{b}", "a\0", &longer,
        ] {
            assert!(check_adapter_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn halves_are_the_whole_content() {
        let content = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;
        let (low, high) = Adapter { place: 0, content }.content_halves();
        assert_eq!(u128::from(high) << 64 | u128::from(low), content);
    }
}
