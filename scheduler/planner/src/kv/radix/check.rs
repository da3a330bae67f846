//! Integrity checks of the tree.

use super::{KeyUnit, NodeId, ROOT, RadixCache, len_u32};
use crate::IntegrityError;

impl<K: KeyUnit> RadixCache<K> {
    /// Checks links, order, locks and totals, and hands the pages of every block in the tree to
    /// `block`.
    /// `holders` are the nodes that requests hold, with repeats.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn check(
        &self,
        holders: impl Iterator<Item = NodeId>,
        mut block: impl FnMut(&[u32]),
    ) -> Result<(), IntegrityError> {
        let mut locks = vec![0u32; self.nodes.len()];
        for mut node in holders {
            while node != ROOT {
                locks[node.0 as usize] += 1;
                node = self.node(node).parent;
            }
        }
        let (mut seen, mut total, mut evictable, mut leaves) = (0, 0, 0, 0);
        let mut open = vec![ROOT];
        while let Some(id) = open.pop() {
            seen += 1;
            self.check_node(id, locks[id.0 as usize])?;
            let node = self.node(id);
            node.pages.chunks(self.groups).for_each(&mut block);
            total += len_u32(self.blocks(id));
            if id != ROOT && node.lock_ref == 0 {
                evictable += len_u32(self.blocks(id));
                leaves += usize::from(node.children.is_empty());
            }
            open.extend(&node.children);
        }
        let totals = [
            ("cached blocks", self.total_blocks, total),
            ("evictable blocks", self.evictable_blocks, evictable),
            (
                "evictable leaves",
                len_u32(self.evictable.len()),
                len_u32(leaves),
            ),
            (
                "cache nodes",
                len_u32(self.nodes.len() - self.unused.len()),
                seen,
            ),
        ];
        for (what, kept, counted) in totals {
            if kept != counted {
                return Err(IntegrityError::Total {
                    what,
                    kept: u64::from(kept),
                    counted: u64::from(counted),
                });
            }
        }
        Ok(())
    }

    fn check_node(&self, id: NodeId, locks: u32) -> Result<(), IntegrityError> {
        let node = self.node(id);
        let mut sorted = node.children.iter().map(|child| self.order(*child));
        let mut pairs = sorted.clone().zip(sorted.by_ref().skip(1));
        let strange = |child: &NodeId| self.node(*child).namespace != node.namespace;
        let listed = self.evictable.contains(&(node.last_access, id));
        let leaf = id != ROOT && node.lock_ref == 0 && node.children.is_empty();
        let message = if node.key.len() * self.groups != node.pages.len() * self.page_size {
            "its key does not cover its pages".into()
        } else if (id == ROOT) != node.pages.is_empty() {
            "only the root has no pages".into()
        } else if node
            .children
            .iter()
            .any(|child| self.node(*child).parent != id)
        {
            "a child has another parent".into()
        } else if id != ROOT && node.children.iter().any(strange) {
            "a child has another namespace".into()
        } else if !pairs.all(|(a, b)| a < b) {
            "its children are out of order".into()
        } else if node.lock_ref != locks {
            format!("locked {} times for {locks} holders", node.lock_ref)
        } else if listed != leaf {
            "listed for eviction wrongly".into()
        } else {
            return Ok(());
        };
        Err(IntegrityError::Cache {
            node: id.0,
            message,
        })
    }
}
