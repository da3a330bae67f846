//! Growing and splitting the tree.

use super::{KeyUnit, Node, NodeId, ROOT, RadixCache, pages_u32};

impl<K: KeyUnit> RadixCache<K> {
    /// Caches `key` (whole pages) in `pages`. Returns the number of leading pages that were
    /// cached already. The cache owns the other pages from now on. The leading ones stay the
    /// caller's, or are the cache's own if the caller got them by a match.
    pub fn insert(&mut self, key: &[K], pages: &[u32]) -> usize {
        debug_assert_eq!(key.len(), pages.len() * self.page_size, "whole pages");
        self.clock += 1;
        let mut node = ROOT;
        let mut had = 0;
        while let Some((child, common)) = self.step(node, &key[had * self.page_size..]) {
            let child = self.split(child, common);
            self.touch(child);
            had += common;
            node = child;
        }
        if had < pages.len() {
            self.add_child(node, &key[had * self.page_size..], &pages[had..]);
        }
        had
    }

    /// Exchanges pages of `pages`, which hold `key`, with cached pages that no request uses. A
    /// page is exchanged if `better(cached, page)` returns true. The replaced page then takes
    /// the place in `pages` and is the caller's.
    pub fn replace(&mut self, key: &[K], pages: &mut [u32], better: impl Fn(u32, u32) -> bool) {
        let (mut node, mut at) = (ROOT, 0);
        while let Some((child, common)) = self.step(node, &key[at * self.page_size..]) {
            let edge = self.node_mut(child);
            let replaceable = if edge.lock_ref == 0 { common } else { 0 };
            let cached = edge.pages.iter_mut().take(replaceable);
            for (cached, page) in cached.zip(&mut pages[at..]) {
                if better(*cached, *page) {
                    std::mem::swap(cached, page);
                }
            }
            at += common;
            if common < edge.pages.len() {
                break;
            }
            node = child;
        }
    }

    /// Appends pages to the prefix that ends at `node`, which the caller has locked. Returns
    /// the new end, with the caller's lock moved there. Returns `None`, and changes nothing, if
    /// another request has cached the first of these pages meanwhile. A running request's page
    /// table can't be changed, so that request keeps its own copy until it ends.
    pub fn extend(&mut self, node: NodeId, key: &[K], pages: &[u32]) -> Option<NodeId> {
        debug_assert_eq!(key.len(), pages.len() * self.page_size, "whole pages");
        if pages.is_empty() || self.step(node, key).is_some() {
            return None;
        }
        self.clock += 1;
        let child = self.add_child(node, key, pages);
        // The caller has locked the path above already.
        self.node_mut(child).lock_ref = 1;
        self.evictable_pages -= pages_u32(pages.len());
        let stamp = self.node(child).last_access;
        self.evictable.remove(&(stamp, child));
        Some(child)
    }

    fn add_child(&mut self, parent: NodeId, key: &[K], pages: &[u32]) -> NodeId {
        let mut node = Node::new(parent);
        node.hashes = self.chain_hashes(parent, key);
        node.key.extend_from_slice(key);
        node.pages.extend_from_slice(pages);
        node.last_access = self.clock;
        let at = match self.child_position(parent, &key[..self.page_size]) {
            Ok(at) | Err(at) => at,
        };
        let child = self.new_node(node);
        let stamp = self.node(parent).last_access;
        self.evictable.remove(&(stamp, parent));
        self.node_mut(parent).children.insert(at, child);
        self.total_pages += pages_u32(pages.len());
        self.evictable_pages += pages_u32(pages.len());
        self.list_if_evictable(child);
        self.record(|cache| cache.stored_event(child));
        child
    }

    /// Cuts `node` after `common` pages and returns the upper part. The old id names the lower
    /// part, whose end is the same, so a request that holds `node` holds the lower part.
    pub(super) fn split(&mut self, id: NodeId, common: usize) -> NodeId {
        if common == self.node(id).pages.len() {
            return id;
        }
        let cut = common * self.page_size;
        let hashed = self.events.is_some();
        // The upper part starts with the same page, so the place among the siblings stays.
        let place = self.place_among_siblings(id);
        let lower = self.node_mut(id);
        let parent = lower.parent;
        let mut upper = Node::new(parent);
        upper.lock_ref = lower.lock_ref;
        upper.last_access = lower.last_access;
        upper.children.push(id);
        let rest = lower.key.split_off(cut);
        upper.key = std::mem::replace(&mut lower.key, rest);
        let rest = lower.pages.split_off(common);
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

    fn new_node(&mut self, node: Node<K>) -> NodeId {
        if let Some(id) = self.unused.pop() {
            *self.node_mut(id) = node;
            return id;
        }
        self.nodes.push(node);
        NodeId(pages_u32(self.nodes.len() - 1))
    }
}
