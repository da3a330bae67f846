//! The nodes of a trie: found by parent and token, and in order of use.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// The node of the empty path. Never counted, used or removed.
pub(super) const ROOT: u32 = 0;

/// No node: the end of a list.
const NONE: u32 = u32::MAX;

/// Nodes that memory is reserved for at the most.
const RESERVED: usize = 1 << 22;

/// An arena of nodes under a root. Each is in two lists: its parent's children
/// and all nodes, both from the one used last to the one unused for longest.
#[derive(Debug)]
pub(super) struct Nodes {
    arena: Vec<Trunk>,
    /// Places in `arena` that are free.
    free: Vec<u32>,
    /// By parent and token.
    index: HashMap<u64, u32, BuildHasherDefault<Mix>>,
    newest: u32,
    oldest: u32,
}

#[derive(Debug, Clone, Copy)]
struct Trunk {
    token: u32,
    parent: u32,
    count: u32,
    /// The child used last.
    child: u32,
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

impl Trunk {
    fn new(token: u32, parent: u32) -> Self {
        Self {
            token,
            parent,
            count: 0,
            child: NONE,
            siblings: ALONE,
            uses: ALONE,
        }
    }
}

impl Nodes {
    /// The root alone, with room for as many more, which is taken from the
    /// machine as it is filled: no step has to wait for a table that grows.
    pub(super) fn new(room: usize) -> Self {
        let room = room.min(RESERVED);
        let mut arena = Vec::with_capacity(1 + room);
        arena.push(Trunk::new(0, NONE));
        Self {
            arena,
            free: Vec::new(),
            index: HashMap::with_capacity_and_hasher(room, BuildHasherDefault::default()),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Nodes but the root.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The node after `parent` with that token.
    pub(super) fn child(&self, parent: u32, token: u32) -> Option<u32> {
        self.index.get(&key(parent, token)).copied()
    }

    /// A node's children, the one used last first: node, token, count.
    pub(super) fn children(&self, parent: u32) -> impl Iterator<Item = (u32, u32, u32)> {
        let first = self.arena[parent as usize].child;
        let nodes = std::iter::successors((first != NONE).then_some(first), |node| {
            let older = self.arena[*node as usize].siblings.older;
            (older != NONE).then_some(older)
        });
        nodes.map(|node| {
            let Trunk { token, count, .. } = self.arena[node as usize];
            (node, token, count)
        })
    }

    /// Adds a node that `parent` does not have, used last.
    pub(super) fn add(&mut self, parent: u32, token: u32) -> u32 {
        let new = Trunk::new(token, parent);
        let node = match self.free.pop() {
            Some(node) => {
                self.arena[node as usize] = new;
                node
            }
            None => {
                self.arena.push(new);
                self.arena.len() as u32 - 1
            }
        };
        self.index.insert(key(parent, token), node);
        self.link(node);
        node
    }

    /// Counts one more window.
    pub(super) fn count(&mut self, node: u32) {
        let count = &mut self.arena[node as usize].count;
        *count = count.saturating_add(1);
    }

    /// Makes a node the one used last.
    pub(super) fn touch(&mut self, node: u32) {
        self.unlink(node);
        self.link(node);
    }

    /// Removes the node unused for longest, which has no children.
    pub(super) fn evict(&mut self) {
        let node = self.oldest;
        if node == NONE {
            return;
        }
        self.unlink(node);
        let Trunk { token, parent, .. } = self.arena[node as usize];
        self.index.remove(&key(parent, token));
        self.free.push(node);
    }

    fn link(&mut self, node: u32) {
        let parent = self.arena[node as usize].parent as usize;
        let sibling = std::mem::replace(&mut self.arena[parent].child, node);
        let older = std::mem::replace(&mut self.newest, node);
        let new = &mut self.arena[node as usize];
        new.siblings.older = sibling;
        new.uses.older = older;
        if sibling != NONE {
            self.arena[sibling as usize].siblings.newer = node;
        }
        match older {
            NONE => self.oldest = node,
            older => self.arena[older as usize].uses.newer = node,
        }
    }

    fn unlink(&mut self, node: u32) {
        let at = &mut self.arena[node as usize];
        let parent = at.parent as usize;
        let (siblings, uses) = (at.siblings, at.uses);
        (at.siblings, at.uses) = (ALONE, ALONE);
        match siblings.newer {
            NONE => self.arena[parent].child = siblings.older,
            newer => self.arena[newer as usize].siblings.older = siblings.older,
        }
        if siblings.older != NONE {
            self.arena[siblings.older as usize].siblings.newer = siblings.newer;
        }
        match uses.newer {
            NONE => self.newest = uses.older,
            newer => self.arena[newer as usize].uses.older = uses.older,
        }
        match uses.older {
            NONE => self.oldest = uses.newer,
            older => self.arena[older as usize].uses.newer = uses.newer,
        }
    }

    /// Panics where lists, index and arena disagree, or the oldest isn't a leaf.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut ages = vec![0; self.arena.len()];
        let (mut at, mut listed, mut newer) = (self.newest, 0, NONE);
        while at != NONE {
            let node = &self.arena[at as usize];
            assert_eq!(node.uses.newer, newer);
            listed += 1;
            ages[at as usize] = listed;
            assert_eq!(self.child(node.parent, node.token), Some(at));
            assert!(ages[node.parent as usize] > 0 || node.parent == ROOT);
            assert!(node.count > 0);
            (newer, at) = (at, node.uses.older);
        }
        assert_eq!(self.oldest, newer);
        assert_eq!(listed, self.len());
        assert_eq!(self.arena.len(), 1 + self.len() + self.free.len());
        let nodes = (0..self.arena.len() as u32).filter(|node| !self.free.contains(node));
        let children: usize = nodes.map(|node| self.children(node).count()).sum();
        assert_eq!(children, self.len());
    }
}

fn key(parent: u32, token: u32) -> u64 {
    u64::from(parent) << 32 | u64::from(token)
}

/// One multiplication, with the high bits brought down: keys are no one's
/// choice but the texts', and a collision costs time only.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let mixed = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}
