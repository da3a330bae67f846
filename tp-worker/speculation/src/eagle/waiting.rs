//! Pairs that wait for the next chains. The first pass of the chains takes them in.

use std::ops::Range;

/// For every slot, the last pairs that the head has not taken in. The target's last pass has
/// kept their features, so the target's next pass must not run before they are taken in.
pub(super) struct Waiting {
    slots: Vec<WaitingPairs>,
    /// Rows of features, of all slots.
    rows: Vec<u32>,
    /// Most pairs of a slot; 0 if none may wait.
    most: usize,
}

/// The waiting pairs of one slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitingPairs {
    /// Number of pairs; 0 if none wait.
    pub pairs: usize,
    /// Start of their rows of features.
    from: usize,
    /// Start of the slot's row of the page table.
    pub pages_start: u32,
    /// True if a chain of this step takes the pairs in.
    pub chained: bool,
}

impl Waiting {
    /// Makes `requests` slots without waiting pairs.
    pub fn new(requests: usize, most: usize) -> Self {
        Self {
            slots: vec![WaitingPairs::default(); requests],
            rows: Vec::with_capacity(requests * most),
            most: 0,
        }
    }

    /// Lets up to `most` pairs of each slot wait from now on.
    pub fn begin(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns true if pairs may wait.
    pub fn may(&self) -> bool {
        self.most > 0
    }

    /// Returns the number of pairs that wait, of `pairs` new ones at the end of a request's
    /// text. With `most` 2: 2 of 2, but 1 of 3.
    pub fn share(&self, pairs: usize) -> usize {
        match self.most {
            0 => 0,
            most if pairs <= most => pairs,
            _ => 1,
        }
    }

    /// Removes all waiting pairs, whose features are gone.
    pub fn forget(&mut self) {
        self.rows.clear();
        self.slots.fill(WaitingPairs::default());
    }

    /// Makes the slot's next pairs wait. `rows` are the rows of their features.
    pub fn push(&mut self, slot: usize, pages_start: u32, rows: &[u32]) {
        self.slots[slot] = WaitingPairs {
            pairs: rows.len(),
            from: self.rows.len(),
            pages_start,
            chained: false,
        };
        self.rows.extend_from_slice(rows);
    }

    /// Returns the waiting pairs of a slot.
    pub fn of(&self, slot: usize) -> WaitingPairs {
        self.slots[slot]
    }

    /// Returns the rows of the pairs' features.
    pub fn rows(&self, waits: WaitingPairs) -> &[u32] {
        let Range { start, end } = waits.from..waits.from + waits.pairs;
        &self.rows[start..end]
    }

    /// Notes that a chain of this step takes in the slot's pairs.
    pub fn chain(&mut self, slot: usize) {
        self.slots[slot].chained = true;
    }

    /// Removes the slot's pairs.
    pub fn done(&mut self, slot: usize) {
        self.slots[slot] = WaitingPairs::default();
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_waits_with_its_own_pairs() {
        let mut waiting = Waiting::new(3, 4);
        assert!(!waiting.may());
        assert_eq!(waiting.share(1), 0);
        waiting.begin(2);
        assert!(waiting.may());
        // If there are more pairs than may wait, only the last waits. The next draft begins
        // with it.
        assert_eq!([1, 2, 3, 9].map(|pairs| waiting.share(pairs)), [1, 2, 1, 1]);
        waiting.push(2, 20, &[7, 8]);
        waiting.push(0, 10, &[9]);
        waiting.chain(2);
        let rows = |slot: usize| waiting.rows(waiting.of(slot)).to_vec();
        assert_eq!([0, 1, 2].map(rows), [vec![9], vec![], vec![7, 8]]);
        let told = |waits: WaitingPairs| (waits.pairs, waits.pages_start, waits.chained);
        assert_eq!(told(waiting.of(2)), (2, 20, true));
        assert_eq!(told(waiting.of(0)), (1, 10, false));
        waiting.done(2);
        assert_eq!(told(waiting.of(2)), (0, 0, false));
        assert_eq!(told(waiting.of(0)), (1, 10, false));
        waiting.forget();
        assert_eq!(told(waiting.of(0)), (0, 0, false));
        waiting.push(1, 5, &[3]);
        assert_eq!(waiting.rows(waiting.of(1)), [3]);
    }
}
