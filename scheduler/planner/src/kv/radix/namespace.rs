//! Namespaces of the cache.

use std::sync::Arc;

use super::key::mix;

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
        let absorb = |hash, byte: u8| mix(hash ^ u64::from(byte));
        cache_salt
            .as_ref()
            .map_or(0, |salt| salt.bytes().fold(mix(1), absorb))
    }
}
