//! The nodes of a trie, found by parent and token, and in the order of their use.

#[cfg(test)]
mod check;
mod piece;
mod table;

use std::iter::successors;

use piece::{PIECE, Piece};
use table::{SLOTS, Table};

/// The node of the empty path. It is never counted, used or removed.
pub(super) const ROOT: u32 = 0;

/// No node: the end of a list. No list leads to the root, so its number is free.
const NONE: u32 = 0;

/// Bytes of memory per entry of the capacity.
pub(super) const ENTRY_BYTES: usize = size_of::<Node>() + SLOTS * size_of::<u32>();

/// An arena of nodes under a root. Each node is in two lists, its parent's children and all
/// nodes. Both lists go from the node used last to the node unused for longest.
///
/// A leaf may have a tail: tokens that would be a chain of nodes below it, each counted and
/// used as the leaf is. The tail is kept in pieces, each in an entry of the arena. It never
/// takes more entries than the chain would.
#[derive(Debug)]
pub(super) struct Nodes {
    arena: Vec<Node>,
    /// Number of entries of nodes and pieces, without the root's.
    used: usize,
    /// First entry of the list of free entries.
    free: u32,
    table: Table,
    newest: u32,
    oldest: u32,
    /// Tail of a leaf while the leaf moves.
    moved: Vec<u32>,
}

/// An entry of the arena: a node, or a [`Piece`] in the form of one.
#[derive(Debug, Clone, Copy)]
struct Node {
    token: u32,
    parent: u32,
    count: u32,
    /// The child used last, or the first piece of a tail. In a free entry, the next free one.
    below: u32,
    siblings: Links,
    uses: Links,
}

/// Neighbours in a list.
#[derive(Debug, Clone, Copy)]
struct Links {
    newer: u32,
    older: u32,
}

const ALONE: Links = Links {
    newer: NONE,
    older: NONE,
};

/// The end of a path from the root: a node, or `along` tokens into its tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ngram) struct End {
    node: u32,
    along: usize,
}

impl Node {
    fn new(token: u32, parent: u32, count: u32) -> Self {
        Self {
            token,
            parent,
            count,
            below: NONE,
            siblings: ALONE,
            uses: ALONE,
        }
    }

    fn key(&self) -> u64 {
        key(self.parent, self.token)
    }
}

impl End {
    /// The end of the empty path.
    pub(super) const ROOT: Self = Self::at(ROOT);

    const fn at(node: u32) -> Self {
        Self { node, along: 0 }
    }

    /// Returns the end one token further in the tail.
    fn further(self) -> Self {
        Self {
            along: self.along + 1,
            ..self
        }
    }
}

/// Returns the number of entries of a leaf of `tokens` tokens, its own and its tail's.
pub(super) fn leaf_entries(tokens: usize) -> usize {
    match tokens {
        0 => 0,
        _ => 1 + (tokens - 1).div_ceil(PIECE),
    }
}

impl Nodes {
    /// Makes a root with room for `room` entries. The memory is taken from the machine as it is
    /// filled, and no step has to wait for a table that grows.
    pub(super) fn new(room: usize) -> Self {
        let mut arena = Vec::with_capacity(1 + room);
        arena.push(Node::new(0, NONE, 0));
        Self {
            arena,
            used: 0,
            free: NONE,
            table: Table::new(room),
            newest: NONE,
            oldest: NONE,
            moved: Vec::new(),
        }
    }

    /// Returns the number of entries in use, without the root's.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the child of `parent` with that token.
    pub(super) fn child(&self, parent: u32, token: u32) -> Option<u32> {
        let below = self.arena[parent as usize].below;
        if below == NONE || piece::target(below).is_some() {
            return None;
        }
        self.table
            .get(key(parent, token), |at| self.arena[at as usize].key())
    }

    /// Returns the tail of a node. Only leaves have a tail.
    pub(super) fn tail(&self, node: u32) -> impl Iterator<Item = u32> {
        let load = |link: u32| {
            let (entry, tokens) = piece::target(link)?;
            Some((Piece::from(self.arena[entry as usize]), tokens))
        };
        let first = load(self.arena[node as usize].below);
        let pieces = successors(first, move |(piece, _)| load(piece.next));
        pieces.flat_map(|(piece, tokens)| piece.tokens.into_iter().take(tokens))
    }

    /// Returns the end of a path that goes on with a token.
    pub(super) fn step(&self, at: End, token: u32) -> Option<End> {
        match self.tail(at.node).nth(at.along) {
            Some(next) => (next == token).then_some(at.further()),
            None => self.child(at.node, token).map(End::at),
        }
    }

    /// Returns the continuations of a path as end, token and count. The one used last comes
    /// first.
    pub(super) fn children(&self, at: End) -> impl Iterator<Item = (End, u32, u32)> {
        let Node { count, below, .. } = self.arena[at.node as usize];
        let next = self.tail(at.node).nth(at.along);
        let next = next.map(|token| (at.further(), token, count));
        let first = match piece::target(below) {
            Some(_) => None,
            None => some(below),
        };
        let older = |node: &u32| some(self.arena[*node as usize].siblings.older);
        let nodes = successors(first, older).map(|node| {
            let Node { token, count, .. } = self.arena[node as usize];
            (End::at(node), token, count)
        });
        next.into_iter().chain(nodes)
    }

    /// Returns a node's parent, token and count.
    pub(super) fn own(&self, node: u32) -> (u32, u32, u32) {
        let Node {
            parent,
            token,
            count,
            ..
        } = self.arena[node as usize];
        (parent, token, count)
    }

    /// Adds a node that `parent` does not have yet, as the one used last. There must be a free
    /// entry, and `parent` must have no tail.
    pub(super) fn add(&mut self, parent: u32, token: u32, count: u32) -> u32 {
        let node = self.put(Node::new(token, parent, count));
        self.enter(node);
        self.join_uses(node);
        node
    }

    /// Gives a tail to a node without anything below it. There must be free entries for its
    /// pieces.
    pub(super) fn set_tail(&mut self, node: u32, tail: &[u32]) {
        let mut next = NONE;
        for tokens in tail.chunks(PIECE).rev() {
            let piece = self.put(Piece::new(tokens, next).into());
            next = piece::link(piece, tokens.len());
        }
        self.arena[node as usize].below = next;
    }

    /// Counts one more window for a node and its ancestors.
    pub(super) fn count(&mut self, mut node: u32) {
        while node != ROOT {
            let at = &mut self.arena[node as usize];
            at.count = at.count.saturating_add(1);
            node = at.parent;
        }
    }

    /// Makes a node and its ancestors the ones used last. Ancestors move after descendants, so
    /// that they stay newer.
    pub(super) fn touch(&mut self, mut node: u32) {
        while node != ROOT {
            let parent = self.arena[node as usize].parent;
            if self.arena[parent as usize].below != node {
                self.leave_siblings(node);
                self.join_siblings(node);
            }
            if self.newest != node {
                self.leave_uses(node);
                self.join_uses(node);
            }
            node = parent;
        }
    }

    /// Takes a leaf from its parent. Its place in the order of use stays.
    pub(super) fn detach(&mut self, leaf: u32) {
        let arena = &self.arena;
        self.table.remove(leaf, |at| arena[at as usize].key());
        self.leave_siblings(leaf);
    }

    /// Puts a detached leaf below another node, without the leaf's own token and the first
    /// tokens of its tail: it begins at token `along` of its tail. If no token is left, the
    /// leaf is removed.
    pub(super) fn attach(&mut self, leaf: u32, parent: u32, along: usize) {
        let mut rest = std::mem::take(&mut self.moved);
        rest.clear();
        rest.extend(self.tail(leaf).skip(along));
        self.drop_tail(leaf);
        match rest.split_first() {
            Some((token, tail)) => {
                let at = &mut self.arena[leaf as usize];
                (at.token, at.parent) = (*token, parent);
                self.enter(leaf);
                self.set_tail(leaf, tail);
            }
            None => {
                self.leave_uses(leaf);
                self.release(leaf);
            }
        }
        self.moved = rest;
    }

    /// Removes the leaf unused for longest, with its tail. Returns false if there is none.
    pub(super) fn evict(&mut self) -> bool {
        let leaf = self.oldest;
        if leaf == NONE {
            return false;
        }
        self.drop_tail(leaf);
        self.detach(leaf);
        self.leave_uses(leaf);
        self.release(leaf);
        true
    }

    fn drop_tail(&mut self, leaf: u32) {
        let mut next = std::mem::replace(&mut self.arena[leaf as usize].below, NONE);
        while let Some((entry, _)) = piece::target(next) {
            next = Piece::from(self.arena[entry as usize]).next;
            self.release(entry);
        }
    }

    /// Fills a free entry.
    fn put(&mut self, node: Node) -> u32 {
        self.used += 1;
        match some(self.free) {
            Some(entry) => {
                self.free = self.arena[entry as usize].below;
                self.arena[entry as usize] = node;
                entry
            }
            None => {
                self.arena.push(node);
                self.arena.len() as u32 - 1
            }
        }
    }

    fn release(&mut self, entry: u32) {
        self.used -= 1;
        self.arena[entry as usize].below = std::mem::replace(&mut self.free, entry);
    }

    /// Makes a node its parent's child, found by its token and used last.
    fn enter(&mut self, node: u32) {
        self.table.insert(node, self.arena[node as usize].key());
        self.join_siblings(node);
    }

    /// Puts a node before all its siblings.
    fn join_siblings(&mut self, node: u32) {
        let Node { parent, .. } = self.arena[node as usize];
        let older = std::mem::replace(&mut self.arena[parent as usize].below, node);
        self.arena[node as usize].siblings = Links { newer: NONE, older };
        if older != NONE {
            self.arena[older as usize].siblings.newer = node;
        }
    }

    fn leave_siblings(&mut self, node: u32) {
        let Node {
            parent,
            siblings: Links { newer, older },
            ..
        } = self.arena[node as usize];
        match newer {
            NONE => self.arena[parent as usize].below = older,
            newer => self.arena[newer as usize].siblings.older = older,
        }
        if older != NONE {
            self.arena[older as usize].siblings.newer = newer;
        }
    }

    fn join_uses(&mut self, node: u32) {
        let older = std::mem::replace(&mut self.newest, node);
        self.arena[node as usize].uses = Links { newer: NONE, older };
        match older {
            NONE => self.oldest = node,
            older => self.arena[older as usize].uses.newer = node,
        }
    }

    fn leave_uses(&mut self, node: u32) {
        let Links { newer, older } = self.arena[node as usize].uses;
        match newer {
            NONE => self.newest = older,
            newer => self.arena[newer as usize].uses.older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.arena[older as usize].uses.newer = newer,
        }
    }
}

fn some(node: u32) -> Option<u32> {
    (node != NONE).then_some(node)
}

fn key(parent: u32, token: u32) -> u64 {
    u64::from(parent) << 32 | u64::from(token)
}
