//! The nodes by key: a hash table that never grows.

/// Number of slots per node.
pub(super) const SLOTS: usize = 2;

/// Marks an empty slot, since the root is in no table.
const EMPTY: u32 = 0;

/// Numbers of nodes. Each is in the first slot that was free, searched from its key's slot on.
/// The nodes have the keys.
///
/// Unlike a map of the standard library, the table always takes the same memory, and less.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<u32>,
}

impl Table {
    /// Makes a table for at most `nodes` nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            slots: vec![EMPTY; SLOTS * nodes],
        }
    }

    /// Returns the node with a key.
    pub(super) fn get(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        let mut at = self.home(key);
        loop {
            match self.slots[at] {
                EMPTY => return None,
                node if key_of(node) == key => return Some(node),
                _ => at = self.after(at),
            }
        }
    }

    /// Adds a node. No other node may have its key.
    pub(super) fn insert(&mut self, node: u32, key: u64) {
        let mut at = self.home(key);
        while self.slots[at] != EMPTY {
            at = self.after(at);
        }
        self.slots[at] = node;
    }

    /// Removes a node that is in the table. Nodes after it that could not take an earlier slot
    /// move up, so that no look-up ends too early.
    pub(super) fn remove(&mut self, node: u32, key_of: impl Fn(u32) -> u64) {
        let mut hole = self.home(key_of(node));
        while self.slots[hole] != node {
            hole = self.after(hole);
        }
        let mut at = self.after(hole);
        while self.slots[at] != EMPTY {
            let home = self.home(key_of(self.slots[at]));
            if self.distance(home, at) >= self.distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.slots[hole] = EMPTY;
    }

    /// Returns the number of nodes in the table.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.slots.iter().filter(|slot| **slot != EMPTY).count()
    }

    /// Returns the bytes that were allocated.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// Returns the slot where the search for a key begins.
    fn home(&self, key: u64) -> usize {
        (((mix(key) >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        match at + 1 {
            end if end == self.slots.len() => 0,
            next => next,
        }
    }

    /// Returns the number of steps from one slot on to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to {
            to - from
        } else {
            to + self.slots.len() - from
        }
    }
}

/// The finalizer of SplitMix64. Keys follow from texts alone, and a collision costs time only.
fn mix(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Tables are nearly full, so that runs of slots are long and go around the end.
        #[test]
        fn it_finds_what_a_map_has(
            changes in prop::collection::vec((1u32..20, any::<bool>()), 0..200),
            spread in 1u64..1 << 40,
        ) {
            let mut table = Table::new(10);
            let key = |node: u32| u64::from(node) * spread;
            let mut there = BTreeMap::new();
            for (node, add) in changes {
                if add && there.insert(node, key(node)).is_none() {
                    table.insert(node, key(node));
                } else if !add && there.remove(&node).is_some() {
                    table.remove(node, key);
                }
                for node in 1..20 {
                    let expected = there.contains_key(&node).then_some(node);
                    prop_assert_eq!(table.get(key(node), key), expected);
                }
            }
        }
    }
}
