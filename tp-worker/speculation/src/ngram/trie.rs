//! Continuations in served texts, shared by all requests.

mod nodes;

use std::ops::RangeInclusive;

use super::continuations::{Continuations, ROOT};
use crate::TreeShape;
use nodes::{End, Nodes};

/// Number of continuations that are looked at per path, the ones used last.
const CHILDREN: usize = 64;

/// A trie of windows of served text in bounded memory.
///
/// A path is counted with every window that begins with it. Tokens that only one window went on
/// with do not become nodes. They are the tail of a leaf, seven tokens in the memory of a node;
/// most of a text that does not repeat is kept so. A tail unfolds into nodes where another
/// window shares a part of it; readers of the trie see no difference. The leaf unserved for
/// longest makes room, with its tail. The oldest node is always a leaf, because serving a node
/// serves its ancestors too.
#[derive(Debug)]
pub struct Trie {
    nodes: Nodes,
    capacity: usize,
    /// Ends of a level with their continuations, and of the next level.
    level: Vec<Branch>,
    next: Vec<Branch>,
}

#[derive(Debug, Clone, Copy)]
struct Branch {
    end: End,
    count: u32,
    token: u32,
    /// Node of [`Continuations`] that the branch hangs on, or is.
    at: u32,
    /// Rank by parent, then by use.
    order: usize,
}

impl Trie {
    /// Most nodes of a trie: links to them have 29 bits.
    pub const MOST_NODES: usize = 1 << 28;

    /// Bytes of a node, including its entry in the table of children.
    pub const NODE_BYTES: u64 = nodes::ENTRY_BYTES as u64;

    /// Makes a trie of at most `capacity` nodes. Tokens of tails count as the nodes whose
    /// memory they take. The capacity is at most [`Self::MOST_NODES`]. It should be at least
    /// the tokens of a window, or windows are cut. The memory is taken from the machine once it
    /// is used.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.min(Self::MOST_NODES);
        Self {
            nodes: Nodes::new(capacity),
            capacity,
            level: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Returns the most bytes of a trie of that capacity, with its root.
    pub const fn bytes(capacity: usize) -> u64 {
        (capacity as u64 + 1) * Self::NODE_BYTES
    }

    /// Returns the number of nodes in use, including nodes whose memory tails take.
    pub fn used(&self) -> usize {
        self.nodes.used()
    }

    /// Removes all windows.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// Takes in one window.
    pub fn insert(&mut self, window: &[u32]) {
        let window = &window[..window.len().min(self.capacity)];
        let (mut node, mut taken) = (nodes::ROOT, 0);
        let known = |node, at: usize| self.nodes.child(node, *window.get(at)?);
        while let Some(child) = known(node, taken) {
            (node, taken) = (child, taken + 1);
        }
        let rest = &window[taken..];
        let pairs = self.nodes.tail(node).zip(rest);
        let shared = pairs.take_while(|(tail, token)| tail == *token).count();
        let (shared, fresh) = rest.split_at(shared);
        if !fresh.is_empty() || self.nodes.tail(node).nth(shared.len()).is_some() {
            node = self.branch(node, shared, fresh);
        }
        self.nodes.count(node);
        self.nodes.touch(node);
    }

    /// Adds to a path that ends with the `shared` tokens of the tail of `node`. Either the tail
    /// has more tokens, or `fresh` ones follow. Returns the last node.
    fn branch(&mut self, mut node: u32, shared: &[u32], fresh: &[u32]) -> u32 {
        let room = nodes::leaf_entries(fresh.len());
        if self.nodes.tail(node).next().is_some() {
            node = self.unfold(node, shared, room);
        } else {
            self.make_room(node, room);
        }
        let Some((token, tail)) = fresh.split_first() else {
            return node;
        };
        let leaf = self.nodes.add(node, *token, 0);
        self.nodes.set_tail(leaf, tail);
        leaf
    }

    /// Makes nodes of a leaf and of the first tokens of its tail, which are `shared`. Returns
    /// the last of them. The rest of the tail becomes a leaf below it, unserved for as long as
    /// before. Afterwards `room` more entries are free.
    fn unfold(&mut self, leaf: u32, shared: &[u32], room: usize) -> u32 {
        let (parent, token, count) = self.nodes.own(leaf);
        self.make_room(parent, 1 + shared.len() + room);
        // The leaf may have been evicted as the one unserved for longest.
        let left = self.nodes.child(parent, token);
        if let Some(leaf) = left {
            self.nodes.detach(leaf);
        }
        let mut node = self.nodes.add(parent, token, count);
        for token in shared {
            node = self.nodes.add(node, *token, count);
        }
        if let Some(leaf) = left {
            self.nodes.attach(leaf, node, shared.len());
        }
        node
    }

    /// Frees entries, but none of the path that ends at `node`.
    fn make_room(&mut self, node: u32, entries: usize) {
        if self.nodes.used() + entries <= self.capacity {
            return;
        }
        self.nodes.touch(node);
        while self.nodes.used() + entries > self.capacity && self.nodes.evict() {}
    }

    /// Returns the longest end of `text` with a continuation, as a path, and its length. Only
    /// lengths in `lengths` are looked for.
    pub(super) fn find(
        &self,
        text: &[u32],
        lengths: RangeInclusive<usize>,
    ) -> Option<(End, usize)> {
        let longest = (*lengths.end()).min(text.len());
        (*lengths.start()..=longest).rev().find_map(|len| {
            let tokens = text[text.len() - len..].iter();
            let end = tokens
                .copied()
                .try_fold(End::ROOT, |end, token| self.nodes.step(end, token))?;
            self.nodes.children(end).next().map(|_| (end, len))
        })
    }

    /// Adds the continuations of the path that ends at `end` to `found`. Each level continues
    /// the best paths of the level before: the most frequent first, and among equals the one
    /// used last.
    pub(super) fn follow(
        &mut self,
        end: End,
        shape: TreeShape,
        rank: u32,
        found: &mut Continuations,
    ) {
        let start = Branch {
            end,
            count: 0,
            token: 0,
            at: ROOT,
            order: 0,
        };
        self.level.clear();
        self.level.push(start);
        for _ in 0..shape.steps {
            self.next.clear();
            for branch in &self.level {
                let children = self.nodes.children(branch.end).take(CHILDREN);
                self.next.extend(children.map(|(end, token, count)| Branch {
                    end,
                    count,
                    token,
                    at: branch.at,
                    order: 0,
                }));
            }
            for (order, branch) in self.next.iter_mut().enumerate() {
                branch.order = order;
            }
            self.next
                .sort_unstable_by_key(|branch| (u32::MAX - branch.count, branch.order));
            self.next.truncate(shape.topk);
            for branch in &mut self.next {
                branch.at = found.add(branch.at, branch.token, rank, branch.count);
            }
            std::mem::swap(&mut self.level, &mut self.next);
        }
    }
}

#[cfg(test)]
mod tests;
