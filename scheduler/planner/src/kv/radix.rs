//! The radix prefix cache: a tree over token keys whose edges own KV pages.
//!
//! After SGLang's RadixAttention (arXiv:2312.07104), at page granularity: edge keys are whole
//! blocks of `page_size` tokens, so two prompts that part inside a block share the blocks before
//! it. A block has one page of each group of layers, so a prefix is cached in all groups or in
//! none. Texts of different namespaces share nothing: the root's children are told apart by their
//! namespace first. A node is locked while any request uses its pages. Locks reach up to the root,
//! so every node below an unlocked node is unlocked. Time is a counter of operations: eviction
//! order depends on calls alone.

use std::collections::BTreeSet;

mod check;
mod events;
mod evict;
mod hash;
mod insert;
mod key;
mod namespace;

pub use events::{CacheEvent, StoredBlock};
pub use key::{KeyUnit, RadixKey};
pub use namespace::Namespace;

/// A node of the tree, valid while it is locked or no call mutates the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

/// The empty prefix; never removed, locked or evicted.
pub const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
struct Node<K> {
    /// Namespace of the texts that go through the node.
    namespace: Namespace,
    /// Key of the edge from the parent: a whole number of blocks, empty only in the root.
    key: Vec<K>,
    /// Page numbers: for each block of `key` in turn, one of each group.
    pages: Vec<u32>,
    /// Hashes, one per block of `key`; empty if events are not recorded.
    hashes: Vec<u64>,
    parent: NodeId,
    /// Children, sorted by their namespace and the first block of their keys. No two have both in
    /// common.
    children: Vec<NodeId>,
    /// Number of requests that use this node or one below it.
    lock_ref: u32,
    /// Time of the last match or insertion.
    last_access: u64,
}

impl<K> Node<K> {
    fn root() -> Self {
        Self::new(ROOT, Namespace::default())
    }

    fn new(parent: NodeId, namespace: Namespace) -> Self {
        Self {
            namespace,
            key: Vec::new(),
            pages: Vec::new(),
            hashes: Vec::new(),
            parent,
            children: Vec::new(),
            lock_ref: 0,
            last_access: 0,
        }
    }
}

/// Namespace and first block of a node, by which siblings are sorted.
type Order<'a, K> = (&'a Namespace, &'a [K]);

/// Prefix cache over keys of `K`, one unit per token.
#[derive(Debug)]
pub struct RadixCache<K> {
    page_size: usize,
    /// Number of groups of layers: pages of a block.
    groups: usize,
    nodes: Vec<Node<K>>,
    unused: Vec<NodeId>,
    /// Unlocked leaves, oldest first.
    evictable: BTreeSet<(u64, NodeId)>,
    clock: u64,
    total_blocks: u32,
    evictable_blocks: u32,
    events: Option<Vec<CacheEvent>>,
}

impl<K: KeyUnit> RadixCache<K> {
    /// Makes an empty cache of blocks of `page_size` tokens, with pages of `groups` groups.
    /// `events` turns the recording of changes on.
    pub fn new(page_size: u32, groups: u32, events: bool) -> Self {
        Self {
            page_size: page_size.max(1) as usize,
            groups: groups.max(1) as usize,
            nodes: vec![Node::root()],
            unused: Vec::new(),
            evictable: BTreeSet::new(),
            clock: 0,
            total_blocks: 0,
            evictable_blocks: 0,
            events: events.then(Vec::new),
        }
    }

    /// Returns the number of blocks in the tree.
    pub fn total_blocks(&self) -> u32 {
        self.total_blocks
    }

    /// Returns the number of blocks in unlocked nodes. Eviction can free these.
    pub fn evictable_blocks(&self) -> u32 {
        self.evictable_blocks
    }

    /// Finds the longest cached prefix of `key` in whole blocks. Appends its pages to `pages`
    /// and returns the node where it ends, for [`lock`](Self::lock).
    pub fn match_prefix(&mut self, key: RadixKey<'_, K>, pages: &mut Vec<u32>) -> NodeId {
        self.clock += 1;
        let mut node = ROOT;
        let mut at = 0;
        while let Some((child, common)) = self.step(node, key.skip(at)) {
            let child = self.split(child, common);
            self.touch(child);
            pages.extend_from_slice(&self.node(child).pages);
            at += common * self.page_size;
            node = child;
        }
        node
    }

    /// Returns the number of leading units of `key` that are cached, and hands the pages of each
    /// of their blocks to `block`; changes nothing.
    pub fn match_len(&self, key: RadixKey<'_, K>, mut block: impl FnMut(&[u32])) -> usize {
        let mut node = ROOT;
        let mut at = 0;
        while let Some((child, common)) = self.step(node, key.skip(at)) {
            at += common * self.page_size;
            let blocks = self.node(child).pages.chunks(self.groups);
            blocks.take(common).for_each(&mut block);
            if common < self.blocks(child) {
                break;
            }
            node = child;
        }
        at
    }

    /// Keeps `node` and all nodes above it from eviction, until as many unlocks.
    pub fn lock(&mut self, node: NodeId) {
        self.for_path(node, |cache, id| {
            let node = cache.node_mut(id);
            node.lock_ref += 1;
            if node.lock_ref == 1 {
                let stamp = node.last_access;
                cache.evictable_blocks -= len_u32(cache.blocks(id));
                cache.evictable.remove(&(stamp, id));
            }
        });
    }

    /// Undoes one lock.
    pub fn unlock(&mut self, node: NodeId) {
        self.for_path(node, |cache, id| {
            let node = cache.node_mut(id);
            debug_assert!(node.lock_ref > 0, "every unlock follows its lock");
            node.lock_ref = node.lock_ref.saturating_sub(1);
            if node.lock_ref == 0 {
                cache.evictable_blocks += len_u32(cache.blocks(id));
                cache.list_if_evictable(id);
            }
        });
    }

    fn for_path(&mut self, mut node: NodeId, mut visit: impl FnMut(&mut Self, NodeId)) {
        while node != ROOT {
            visit(self, node);
            node = self.node(node).parent;
        }
    }

    /// Returns the child of `node` that has the namespace and the first block of `key`, and the
    /// number of whole blocks in common (at least one).
    fn step(&self, node: NodeId, key: RadixKey<'_, K>) -> Option<(NodeId, usize)> {
        let first = key.units.get(..self.page_size)?;
        let at = self.child_position(node, (key.namespace, first)).ok()?;
        let child = self.node(node).children[at];
        let edge = &self.node(child).key;
        Some((child, common_prefix(edge, key.units) / self.page_size))
    }

    fn child_position(&self, node: NodeId, order: Order<'_, K>) -> Result<usize, usize> {
        let children = &self.node(node).children;
        children.binary_search_by(|child| self.order(*child).cmp(&order))
    }

    fn place_among_siblings(&self, id: NodeId) -> usize {
        match self.child_position(self.node(id).parent, self.order(id)) {
            Ok(at) | Err(at) => at,
        }
    }

    /// Returns the order of a node among its siblings. The root is nobody's sibling.
    fn order(&self, id: NodeId) -> Order<'_, K> {
        let node = self.node(id);
        (&node.namespace, &node.key[..self.page_size])
    }

    /// Marks `node` as just used.
    fn touch(&mut self, id: NodeId) {
        let clock = self.clock;
        let node = self.node_mut(id);
        let before = std::mem::replace(&mut node.last_access, clock);
        if self.evictable.remove(&(before, id)) {
            self.evictable.insert((clock, id));
        }
    }

    fn list_if_evictable(&mut self, id: NodeId) {
        let node = self.node(id);
        if id != ROOT && node.lock_ref == 0 && node.children.is_empty() {
            let stamp = node.last_access;
            self.evictable.insert((stamp, id));
        }
    }

    /// Returns the number of blocks of a node's key.
    fn blocks(&self, id: NodeId) -> usize {
        self.node(id).key.len() / self.page_size
    }

    fn node(&self, id: NodeId) -> &Node<K> {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<K> {
        &mut self.nodes[id.0 as usize]
    }
}

/// Returns the number of leading units that two keys share; whole blocks are compared at once.
pub(crate) fn common_prefix<K: PartialEq>(a: &[K], b: &[K]) -> usize {
    const BLOCK: usize = 32;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let same = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    let rest = a[same..].iter().zip(&b[same..]);
    same + rest.take_while(|(a, b)| a == b).count()
}

/// Converts a length. Page numbers are `u32`, so no list of distinct blocks is longer.
fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
