//! Changes of the cache, for routers that send a request to the server with its prefix.

use std::sync::Arc;

use super::{KeyUnit, NodeId, ROOT, RadixCache, RadixKey};

/// One change of the cache. A block is `page_size` tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// A run of blocks is cached. Each block is the child of the one before.
    BlockStored {
        /// Hash of the block before the first; `None` at the start of a sequence.
        parent: Option<u64>,
        /// The blocks, in sequence order.
        blocks: Vec<StoredBlock>,
        /// Tokens per block.
        block_size: u32,
        /// Salt of the requests that may use the blocks; `None` = those without a salt.
        cache_salt: Option<Arc<str>>,
        /// Hash of the content of the adapter that the blocks were computed with; `None` = the
        /// model alone.
        adapter: Option<u128>,
    },
    /// Blocks are no longer cached.
    BlockRemoved {
        /// Hashes of the blocks, the deepest first.
        hashes: Vec<u64>,
    },
    /// The cache is empty.
    Cleared,
}

/// One block that is now cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// Hash of the block's tokens, of all blocks before it, and of their namespace.
    pub hash: u64,
    /// The block's tokens.
    pub token_ids: Vec<u32>,
}

impl<K: KeyUnit> RadixCache<K> {
    /// Drains the recorded events, oldest first; empty if recording is off.
    pub fn take_events(&mut self) -> impl Iterator<Item = CacheEvent> + '_ {
        self.events
            .as_mut()
            .into_iter()
            .flat_map(|events| events.drain(..))
    }

    /// Returns the whole cache as `BlockStored` events, parents first, for a subscriber that
    /// comes late. Empty if recording is off.
    pub fn snapshot(&self) -> Vec<CacheEvent> {
        let mut events = Vec::new();
        let mut open = vec![ROOT];
        while let Some(id) = open.pop() {
            open.extend(self.node(id).children.iter().rev());
            if id != ROOT && self.events.is_some() {
                events.push(self.stored_event(id));
            }
        }
        events
    }

    pub(super) fn record(&mut self, event: impl FnOnce(&Self) -> CacheEvent) {
        if self.events.is_some() {
            let event = event(self);
            if let Some(events) = &mut self.events {
                events.push(event);
            }
        }
    }

    /// Returns the hashes of the blocks of a new node's key, chained on the parent's last hash.
    pub(super) fn chain_hashes(&self, parent: NodeId, key: RadixKey<'_, K>) -> Vec<u64> {
        if self.events.is_none() {
            return Vec::new();
        }
        let begin = || key.namespace.hash();
        let mut hash = self.last_hash(parent).unwrap_or_else(begin);
        key.units
            .chunks_exact(self.page_size)
            .map(|block| {
                hash = block.iter().fold(hash, |hash, unit| unit.absorb(hash));
                hash
            })
            .collect()
    }

    pub(super) fn stored_event(&self, id: NodeId) -> CacheEvent {
        let node = self.node(id);
        let blocks = node.key.chunks_exact(self.page_size).zip(&node.hashes);
        CacheEvent::BlockStored {
            parent: self.last_hash(node.parent),
            blocks: blocks
                .map(|(units, hash)| StoredBlock {
                    hash: *hash,
                    token_ids: units.iter().map(|unit| unit.token()).collect(),
                })
                .collect(),
            block_size: super::len_u32(self.page_size),
            cache_salt: node.namespace.cache_salt(),
            adapter: node.namespace.adapter(),
        }
    }

    fn last_hash(&self, id: NodeId) -> Option<u64> {
        self.node(id).hashes.last().copied()
    }
}
