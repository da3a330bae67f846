//! Namespaces of the cache.

use std::sync::Arc;

use super::hash::mix;

/// A bit that no unit of a text has, since vocabularies have fewer than 2³¹ tokens. With it the
/// bytes of a salt are absorbed like no tokens.
/// Without it the salt `"a"` and the token 97 would lead to one hash.
const OF_A_SALT: u64 = 1 << 63;

/// Namespace of a text: texts share blocks only within one. The default is the namespace of
/// requests without a salt.
///
/// SGLang calls it `extra_key`. Whatever keys and values depend on beside tokens belongs here.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace {
    cache_salt: Option<Arc<str>>,
}

impl Namespace {
    /// Returns the namespace of requests with this salt.
    pub fn new(cache_salt: Option<String>) -> Self {
        Self {
            cache_salt: cache_salt.map(Arc::from),
        }
    }

    /// Returns the salt, for cache events.
    pub(super) fn cache_salt(&self) -> Option<Arc<str>> {
        self.cache_salt.clone()
    }

    /// Returns the hash that the hashes of a text's blocks begin with. So equal tokens have
    /// other hashes in another namespace.
    pub(super) fn hash(&self) -> u64 {
        let Self { cache_salt } = self;
        let Some(salt) = cache_salt else { return 0 };
        let absorb = |hash, word: u64| mix(hash ^ OF_A_SALT ^ word);
        let hash = salt.bytes().map(u64::from).fold(mix(OF_A_SALT), absorb);
        absorb(hash, salt.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::KeyUnit;
    use super::*;

    #[test]
    fn a_salt_is_hashed_like_no_text_and_like_no_part_of_another() {
        let of_salt = |salt: &str| Namespace::new(Some(salt.to_owned())).hash();
        let of_text = |text: &[u32]| text.iter().fold(0, |hash, token| token.absorb(hash));
        let mut seen = vec![Namespace::default().hash()];
        for salt in ["a", "aa", "a\0", "b", "\u{1}a"] {
            let tokens: Vec<u32> = salt.bytes().map(u32::from).collect();
            let with_begin = [&[1], &tokens[..]].concat();
            seen.extend([of_salt(salt), of_text(&tokens), of_text(&with_begin)]);
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        // "a" behind token 1 is the text of "\u{1}a".
        assert_eq!(seen.len(), count - 1);
    }
}
