//! Growing and splitting the tree.

use super::{KeyUnit, Node, NodeId, ROOT, RadixCache, RadixKey, len_u32};

impl<K: KeyUnit> RadixCache<K> {
    /// Caches `key` (whole blocks) in `pages`. Returns the number of leading blocks that were
    /// cached already. The cache owns the pages of the other blocks from now on. The pages of
    /// the leading blocks do not change owners: they are the caller's, or the cache's if the caller
    /// got them by a match.
    pub fn insert(&mut self, key: RadixKey<'_, K>, pages: &[u32]) -> usize {
        self.expect_whole(key, pages);
        self.clock += 1;
        let mut node = ROOT;
        let mut had = 0;
        while let Some((child, common)) = self.step(node, key.skip(had * self.page_size)) {
            let child = self.split(child, common);
            self.touch(child);
            had += common;
            node = child;
        }
        let (key, pages) = (key.skip(had * self.page_size), &pages[had * self.groups..]);
        if !key.units.is_empty() {
            self.add_child(node, key, pages);
        }
        had
    }

    /// Exchanges blocks of `pages`, which hold `key`, with cached blocks that no request uses. A
    /// block is exchanged if `better(cached, block)` returns true. The replaced block's pages
    /// then take the places in `pages` and are the caller's.
    pub fn replace(
        &mut self,
        key: RadixKey<'_, K>,
        pages: &mut [u32],
        mut better: impl FnMut(&[u32], &[u32]) -> bool,
    ) {
        let (mut node, mut at, groups) = (ROOT, 0, self.groups);
        while let Some((child, common)) = self.step(node, key.skip(at * self.page_size)) {
            let edge = self.node_mut(child);
            let replaceable = if edge.lock_ref == 0 { common } else { 0 };
            let cached = edge.pages.chunks_mut(groups).take(replaceable);
            for (cached, block) in cached.zip(pages[at * groups..].chunks_mut(groups)) {
                if better(cached, block) {
                    cached.swap_with_slice(block);
                }
            }
            at += common;
            if common < self.blocks(child) {
                break;
            }
            node = child;
        }
    }

    /// Appends blocks to the prefix that ends at `node`, which the caller has locked. Returns
    /// the new end, with the caller's lock moved there. Returns `None`, and changes nothing, if
    /// another request has cached the first of these blocks meanwhile. A running request's page
    /// table can't be changed, so that request keeps its own copy until it ends.
    pub fn extend(&mut self, node: NodeId, key: RadixKey<'_, K>, pages: &[u32]) -> Option<NodeId> {
        self.expect_whole(key, pages);
        if pages.is_empty() || self.step(node, key).is_some() {
            return None;
        }
        self.clock += 1;
        let child = self.add_child(node, key, pages);
        // The caller has locked the path above already.
        self.node_mut(child).lock_ref = 1;
        self.evictable_blocks -= len_u32(self.blocks(child));
        let stamp = self.node(child).last_access;
        self.evictable.remove(&(stamp, child));
        Some(child)
    }

    fn add_child(&mut self, parent: NodeId, key: RadixKey<'_, K>, pages: &[u32]) -> NodeId {
        let mut node = Node::new(parent, key.namespace.clone());
        node.hashes = self.chain_hashes(parent, key);
        node.key.extend_from_slice(key.units);
        node.pages.extend_from_slice(pages);
        node.last_access = self.clock;
        let child = self.new_node(node);
        let at = self.place_among_siblings(child);
        let stamp = self.node(parent).last_access;
        self.evictable.remove(&(stamp, parent));
        self.node_mut(parent).children.insert(at, child);
        self.total_blocks += len_u32(self.blocks(child));
        self.evictable_blocks += len_u32(self.blocks(child));
        self.list_if_evictable(child);
        self.record(|cache| cache.stored_event(child));
        child
    }

    /// Cuts `node` after `common` blocks and returns the upper part. The old id names the lower
    /// part, whose end is the same, so a request that holds `node` holds the lower part.
    pub(super) fn split(&mut self, id: NodeId, common: usize) -> NodeId {
        if common == self.blocks(id) {
            return id;
        }
        let (cut, pages) = (common * self.page_size, common * self.groups);
        let hashed = self.events.is_some();
        // The upper part has the same namespace and first block, so the place among the siblings
        // stays.
        let place = self.place_among_siblings(id);
        let lower = self.node_mut(id);
        let parent = lower.parent;
        let mut upper = Node::new(parent, lower.namespace.clone());
        upper.lock_ref = lower.lock_ref;
        upper.last_access = lower.last_access;
        upper.children.push(id);
        let rest = lower.key.split_off(cut);
        upper.key = std::mem::replace(&mut lower.key, rest);
        let rest = lower.pages.split_off(pages);
        upper.pages = std::mem::replace(&mut lower.pages, rest);
        if hashed {
            let rest = lower.hashes.split_off(common);
            upper.hashes = std::mem::replace(&mut lower.hashes, rest);
        }
        let upper = self.new_node(upper);
        self.node_mut(parent).children[place] = upper;
        self.node_mut(id).parent = upper;
        upper
    }

    fn expect_whole(&self, key: RadixKey<'_, K>, pages: &[u32]) {
        let blocks = pages.len() / self.groups;
        debug_assert_eq!(key.units.len(), blocks * self.page_size, "whole blocks");
    }

    fn new_node(&mut self, node: Node<K>) -> NodeId {
        if let Some(id) = self.unused.pop() {
            *self.node_mut(id) = node;
            return id;
        }
        self.nodes.push(node);
        NodeId(len_u32(self.nodes.len() - 1))
    }
}
