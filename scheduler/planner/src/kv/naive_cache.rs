//! The prefix cache in its plainest form: the oracle of [`super::radix`].

use std::collections::BTreeMap;

use super::Namespace;

/// Namespace and units of a cached prefix.
type Prefix<K> = (Namespace, Vec<K>);

/// Every cached prefix (whole pages) and the page that holds its end.
#[derive(Debug, Default)]
pub struct NaiveCache<K> {
    page_size: usize,
    ends: BTreeMap<Prefix<K>, u32>,
}

impl<K: Copy + Ord> NaiveCache<K> {
    /// Makes an empty cache.
    pub fn new(page_size: u32) -> Self {
        Self {
            page_size: page_size as usize,
            ends: BTreeMap::new(),
        }
    }

    /// Returns the pages of the longest cached prefix of `key` in its namespace.
    pub fn match_prefix(&self, (namespace, key): &Prefix<K>) -> Vec<u32> {
        let prefix = |pages: usize| (namespace.clone(), key[..pages * self.page_size].to_vec());
        (1..=key.len() / self.page_size)
            .map_while(|pages| self.ends.get(&prefix(pages)).copied())
            .collect()
    }

    /// Caches `key` in `pages`. Returns the number of leading pages that were cached already.
    pub fn insert(&mut self, key: &Prefix<K>, pages: &[u32]) -> usize {
        let had = self.match_prefix(key).len();
        let (namespace, key) = key;
        for (at, page) in pages.iter().enumerate().skip(had) {
            let prefix = key[..(at + 1) * self.page_size].to_vec();
            self.ends.insert((namespace.clone(), prefix), *page);
        }
        had
    }

    /// Forgets the prefix that ends in `page`.
    pub fn remove_page(&mut self, page: u32) {
        self.ends.retain(|_, end| *end != page);
    }

    /// Returns every cached prefix, in order.
    pub fn prefixes(&self) -> impl Iterator<Item = &Prefix<K>> {
        self.ends.keys()
    }

    /// Returns the number of cached pages.
    pub fn len(&self) -> usize {
        self.ends.len()
    }
}
