//! What served texts said, shared by all requests.

mod nodes;

use std::ops::RangeInclusive;

use super::continuations::{Continuations, ROOT};
use crate::TreeShape;
use nodes::Nodes;

/// Children that are looked at per node: the ones used last.
const CHILDREN: usize = 64;

/// A trie of windows of served text with a bounded number of nodes.
///
/// A node counts the windows that began with its path. The node unserved for
/// longest makes room for a new one; it is always a leaf, as whatever serves a
/// node serves its ancestors too.
#[derive(Debug)]
pub struct Trie {
    nodes: Nodes,
    capacity: usize,
    /// The window's nodes.
    path: Vec<u32>,
    /// Nodes of a level with their continuations, and of the next one.
    level: Vec<Branch>,
    next: Vec<Branch>,
}

#[derive(Debug, Clone, Copy)]
struct Branch {
    node: u32,
    count: u32,
    token: u32,
    /// The node of [`Continuations`] that it hangs on, or is.
    at: u32,
    /// Place by parent, then by use.
    order: usize,
}

impl Trie {
    /// Bytes of a node that is used, its place in its parent's list included.
    pub const NODE_BYTES: u64 = 60;

    /// One of at most `capacity` nodes, which must be more than the tokens of
    /// any window. A node takes [`Self::NODE_BYTES`] once it is used.
    pub fn new(capacity: usize) -> Self {
        Self {
            nodes: Nodes::new(capacity),
            capacity,
            path: Vec::new(),
            level: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Nodes in use.
    pub fn used(&self) -> usize {
        self.nodes.len()
    }

    /// Forgets all windows.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// Takes in one window.
    pub fn insert(&mut self, window: &[u32]) {
        self.path.clear();
        let may_evict = self.nodes.len() + window.len() > self.capacity;
        let mut node = nodes::ROOT;
        for token in window {
            node = match self.nodes.child(node, *token) {
                Some(child) => {
                    if may_evict {
                        // Out of the way of the evictions below.
                        self.nodes.touch(child);
                    }
                    child
                }
                None => {
                    if self.nodes.len() >= self.capacity {
                        self.nodes.evict();
                    }
                    self.nodes.add(node, *token)
                }
            };
            self.nodes.count(node);
            self.path.push(node);
        }
        // Ancestors after descendants, so that they stay newer.
        for node in self.path.iter().rev() {
            self.nodes.touch(*node);
        }
    }

    /// The node of the longest end of `text` that has a continuation, and its
    /// length, which is within `lengths`.
    pub(super) fn find(
        &self,
        text: &[u32],
        lengths: RangeInclusive<usize>,
    ) -> Option<(u32, usize)> {
        let longest = (*lengths.end()).min(text.len());
        (*lengths.start()..=longest).rev().find_map(|len| {
            let end = text[text.len() - len..].iter();
            let node = end
                .copied()
                .try_fold(nodes::ROOT, |node, token| self.nodes.child(node, token))?;
            self.nodes.children(node).next().map(|_| (node, len))
        })
    }

    /// Adds what followed `node` to `found`: per level the best nodes of the
    /// level before, the most frequent first and the one used last among equals.
    pub(super) fn follow(
        &mut self,
        node: u32,
        shape: TreeShape,
        rank: u32,
        found: &mut Continuations,
    ) {
        let start = Branch {
            node,
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
                let children = self.nodes.children(branch.node).take(CHILDREN);
                self.next
                    .extend(children.map(|(node, token, count)| Branch {
                        node,
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
