//! Namespaces of the cache.

use std::sync::Arc;

use lockstep_types::adapter::Adapter;

use super::hash::mix;

/// A bit that no unit of a text has, since vocabularies have fewer than 2³¹ tokens. With it the
/// bytes of a salt are absorbed like no tokens.
/// Without it the salt `"a"` and the token 97 would lead to one hash.
const OF_A_SALT: u64 = 1 << 63;

/// A second bit that no unit has, for the adapter. With it the salt of the bytes of an adapter's
/// hash leads to another hash than the adapter.
const OF_AN_ADAPTER: u64 = OF_A_SALT | 1 << 62;

/// Namespace of a text: texts share blocks only within one. The default is the namespace of
/// requests without a salt and without an adapter.
///
/// SGLang calls it `extra_key`. Whatever keys and values depend on beside tokens belongs here.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace {
    cache_salt: Option<Arc<str>>,
    /// Hash of the content of the adapter that computed with the model.
    adapter: Option<u128>,
}

impl Namespace {
    /// Returns the namespace of requests with this salt and this adapter. An adapter's name and
    /// place are no part of it: equal bytes have equal keys and values, and other bytes under
    /// the same name have others.
    pub fn new(cache_salt: Option<String>, adapter: Option<Adapter>) -> Self {
        Self {
            cache_salt: cache_salt.map(Arc::from),
            adapter: adapter.map(|adapter| adapter.content),
        }
    }

    /// Returns the hash of the adapter's content, for cache events.
    pub(super) fn adapter(&self) -> Option<u128> {
        self.adapter
    }

    /// Returns the salt, for cache events.
    pub(super) fn cache_salt(&self) -> Option<Arc<str>> {
        self.cache_salt.clone()
    }

    /// Returns the hash that the hashes of a text's blocks begin with. So equal tokens have
    /// other hashes in another namespace.
    pub(super) fn hash(&self) -> u64 {
        let Self {
            cache_salt,
            adapter,
        } = self;
        let mut hash = 0;
        if let Some(salt) = cache_salt {
            let absorb = |hash, word: u64| mix(hash ^ OF_A_SALT ^ word);
            hash = salt.bytes().map(u64::from).fold(mix(OF_A_SALT), absorb);
            hash = absorb(hash, salt.len() as u64);
        }
        if let Some(content) = adapter {
            let quarters = [0, 32, 64, 96].map(|at| content >> at & u128::from(u32::MAX));
            let words = quarters.map(|word| u64::try_from(word).unwrap_or(0));
            hash = words
                .iter()
                .fold(hash, |hash, word| mix(hash ^ OF_AN_ADAPTER ^ word));
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::super::KeyUnit;
    use super::*;

    #[test]
    fn a_salt_is_hashed_like_no_text_and_like_no_part_of_another() {
        let of_salt = |salt: &str| Namespace::new(Some(salt.to_owned()), None).hash();
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

    #[test]
    fn every_part_of_an_adapters_hash_counts_and_its_place_does_not() {
        let of = |salt: Option<&str>, place, content| {
            let adapter = Some(Adapter { place, content });
            Namespace::new(salt.map(str::to_owned), adapter)
        };
        assert_eq!(of(None, 0, 7), of(None, 1, 7));
        let salts = [None, Some("a"), Some("\0")];
        let contents = [0, 1, 1 << 32, 1 << 64, 1 << 96, u128::MAX];
        let mut seen: Vec<u64> = salts
            .iter()
            .flat_map(|salt| contents.map(|content| of(*salt, 0, content).hash()))
            .collect();
        seen.extend(salts.map(|salt| Namespace::new(salt.map(str::to_owned), None).hash()));
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}
