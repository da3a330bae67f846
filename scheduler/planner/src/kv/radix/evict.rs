//! Eviction of blocks: least recently used leaves first, from their ends.

use super::{CacheEvent, KeyUnit, Namespace, Node, NodeId, RadixCache, len_u32};

impl<K: KeyUnit> RadixCache<K> {
    /// Frees up to `count` blocks and hands the pages of each to `release`. Returns the number
    /// of freed blocks. A leaf is cut from its end, because other requests are most likely to
    /// share the start of a sequence.
    pub fn evict(&mut self, count: u32, mut release: impl FnMut(&[u32])) -> u32 {
        let mut left = count as usize;
        while left > 0 {
            let Some((stamp, id)) = self.evictable.pop_first() else {
                break;
            };
            let keep = self.blocks(id).saturating_sub(left);
            left -= self.blocks(id) - keep;
            if keep > 0 {
                self.evictable.insert((stamp, id));
            } else {
                self.remove_leaf(id);
            }
            self.truncate(id, keep, &mut release);
        }
        count - len_u32(left)
    }

    /// Empties the cache and hands the pages of each block to `release`. Nothing may be locked.
    pub fn clear(&mut self, mut release: impl FnMut(&[u32])) {
        for node in &self.nodes {
            node.pages.chunks(self.groups).for_each(&mut release);
        }
        self.nodes.clear();
        self.nodes.push(Node::root());
        self.unused.clear();
        self.evictable.clear();
        self.total_blocks = 0;
        self.evictable_blocks = 0;
        self.record(|_| CacheEvent::Cleared);
    }

    fn truncate(&mut self, id: NodeId, keep: usize, release: &mut impl FnMut(&[u32])) {
        let (units, groups) = (keep * self.page_size, self.groups);
        let hashed = self.events.is_some();
        let gone = self.blocks(id) - keep;
        let node = self.node_mut(id);
        let pages = node.pages[keep * groups..].chunks(groups);
        pages.rev().for_each(release);
        node.pages.truncate(keep * groups);
        node.key.truncate(units);
        if hashed {
            let hashes: Vec<u64> = node.hashes.drain(keep..).rev().collect();
            self.record(|_| CacheEvent::BlockRemoved { hashes });
        }
        self.total_blocks -= len_u32(gone);
        self.evictable_blocks -= len_u32(gone);
    }

    fn remove_leaf(&mut self, id: NodeId) {
        let parent = self.node(id).parent;
        let place = self.place_among_siblings(id);
        self.node_mut(parent).children.remove(place);
        // A salt stays in memory only as long as its blocks.
        self.node_mut(id).namespace = Namespace::default();
        self.unused.push(id);
        self.list_if_evictable(parent);
    }
}
