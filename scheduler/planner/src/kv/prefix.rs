//! The prefix cache by texts instead of keys.

use std::{fmt::Debug, ops::Range};

use super::radix::{KeyUnit, Namespace, NodeId, RadixCache, RadixKey};
use crate::{CacheEvent, DraftKv, IntegrityError};

/// A text of a namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a> {
    namespace: &'a Namespace,
    tokens: &'a [u32],
}

impl<'a> Text<'a> {
    pub fn new(namespace: &'a Namespace, tokens: &'a [u32]) -> Self {
        Self { namespace, tokens }
    }

    /// Returns the key of some positions, see [`KeyUnit::key`].
    fn key<K: KeyUnit>(self, positions: Range<usize>, scratch: &'a mut Vec<K>) -> RadixKey<'a, K> {
        RadixKey {
            namespace: self.namespace,
            units: K::key(self.tokens, positions, scratch),
        }
    }
}

/// A radix cache whose keys are made from texts. Positions count tokens. The key of a position
/// may depend on the token after it, which must then be known.
pub(crate) trait PrefixCache: Debug + Send + Sync {
    /// [`RadixCache::match_prefix`] of the text's first `units` positions.
    fn match_prefix(&mut self, text: Text<'_>, units: usize, pages: &mut Vec<u32>) -> NodeId;
    /// [`RadixCache::match_len`] of the text's first `units` positions.
    fn match_len(&mut self, text: Text<'_>, units: usize, block: &mut dyn FnMut(&[u32])) -> usize;
    /// [`RadixCache::insert`] of the text's first positions: as many as `pages` hold.
    fn insert(&mut self, text: Text<'_>, pages: &[u32]) -> usize;
    /// [`RadixCache::replace`] of the text's first positions: as many as `pages` hold.
    fn replace(&mut self, text: Text<'_>, pages: &mut [u32], better: &mut Better<'_>);
    /// [`RadixCache::extend`] by some whole blocks of a text.
    fn extend(
        &mut self,
        node: NodeId,
        text: Text<'_>,
        positions: Range<usize>,
        pages: &[u32],
    ) -> Option<NodeId>;
    fn lock(&mut self, node: NodeId);
    fn unlock(&mut self, node: NodeId);
    fn total_blocks(&self) -> u32;
    fn evictable_blocks(&self) -> u32;
    fn evict(&mut self, count: u32, release: &mut dyn FnMut(&[u32])) -> u32;
    fn clear(&mut self, release: &mut dyn FnMut(&[u32]));
    fn take_events(&mut self) -> Vec<CacheEvent>;
    fn snapshot(&self) -> Vec<CacheEvent>;
    /// [`RadixCache::check`].
    fn check(
        &self,
        holders: &mut dyn Iterator<Item = NodeId>,
        block: &mut dyn FnMut(&[u32]),
    ) -> Result<(), IntegrityError>;
}

/// Comparison of two blocks by their pages: returns true if the second block is better than the
/// first, which is cached.
type Better<'a> = dyn FnMut(&[u32], &[u32]) -> bool + 'a;

/// Makes an empty cache with the keys that the drafter's KV needs.
pub(crate) fn prefix_cache(
    draft_kv: DraftKv,
    page_size: u32,
    groups: u32,
    events: bool,
) -> Box<dyn PrefixCache> {
    match draft_kv {
        DraftKv::None | DraftKv::Tokens => Box::new(Keyed::<u32>::new(page_size, groups, events)),
        DraftKv::Pairs => Box::new(Keyed::<(u32, u32)>::new(page_size, groups, events)),
    }
}

/// A tree, and a buffer for the key that is looked up.
#[derive(Debug)]
struct Keyed<K> {
    page_size: usize,
    groups: usize,
    tree: RadixCache<K>,
    /// Buffer that is reused from call to call.
    key: Vec<K>,
}

impl<K: KeyUnit> Keyed<K> {
    fn new(page_size: u32, groups: u32, events: bool) -> Self {
        Self {
            page_size: page_size as usize,
            groups: groups as usize,
            tree: RadixCache::new(page_size, groups, events),
            key: Vec::new(),
        }
    }
}

impl<K: KeyUnit> PrefixCache for Keyed<K> {
    fn match_prefix(&mut self, text: Text<'_>, units: usize, pages: &mut Vec<u32>) -> NodeId {
        let key = text.key(0..units, &mut self.key);
        self.tree.match_prefix(key, pages)
    }

    fn match_len(&mut self, text: Text<'_>, units: usize, block: &mut dyn FnMut(&[u32])) -> usize {
        let key = text.key(0..units, &mut self.key);
        self.tree.match_len(key, block)
    }

    fn insert(&mut self, text: Text<'_>, pages: &[u32]) -> usize {
        let units = pages.len() / self.groups * self.page_size;
        let key = text.key(0..units, &mut self.key);
        self.tree.insert(key, pages)
    }

    fn replace(&mut self, text: Text<'_>, pages: &mut [u32], better: &mut Better<'_>) {
        let units = pages.len() / self.groups * self.page_size;
        let key = text.key(0..units, &mut self.key);
        self.tree.replace(key, pages, better);
    }

    fn extend(
        &mut self,
        node: NodeId,
        text: Text<'_>,
        positions: Range<usize>,
        pages: &[u32],
    ) -> Option<NodeId> {
        let key = text.key(positions, &mut self.key);
        self.tree.extend(node, key, pages)
    }

    fn lock(&mut self, node: NodeId) {
        self.tree.lock(node);
    }

    fn unlock(&mut self, node: NodeId) {
        self.tree.unlock(node);
    }

    fn total_blocks(&self) -> u32 {
        self.tree.total_blocks()
    }

    fn evictable_blocks(&self) -> u32 {
        self.tree.evictable_blocks()
    }

    fn evict(&mut self, count: u32, release: &mut dyn FnMut(&[u32])) -> u32 {
        self.tree.evict(count, release)
    }

    fn clear(&mut self, release: &mut dyn FnMut(&[u32])) {
        self.tree.clear(release);
    }

    fn take_events(&mut self) -> Vec<CacheEvent> {
        self.tree.take_events().collect()
    }

    fn snapshot(&self) -> Vec<CacheEvent> {
        self.tree.snapshot()
    }

    fn check(
        &self,
        holders: &mut dyn Iterator<Item = NodeId>,
        block: &mut dyn FnMut(&[u32]),
    ) -> Result<(), IntegrityError> {
        self.tree.check(holders, block)
    }
}

#[cfg(test)]
mod tests;
