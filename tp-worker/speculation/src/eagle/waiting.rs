//! Pairs that wait for the next chains, whose first pass takes them in.

use std::ops::Range;

/// Of every slot the last pairs that are not taken in: the target's last pass has kept
/// their features, and no other pass of it may run before they are.
pub(super) struct Waiting {
    slots: Vec<Waits>,
    /// Rows of features.
    rows: Vec<u32>,
    /// Pairs of a slot at the most; 0: none wait.
    most: usize,
}

/// Those of one slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waits {
    /// How many, none of them being 0.
    pub pairs: usize,
    /// Where their rows of features begin.
    from: usize,
    /// Where the slot's row of the page table begins.
    pub pages_start: u32,
    /// A chain of this step takes them in.
    pub chained: bool,
}

impl Waiting {
    /// Of `requests` slots, none of which waits.
    pub fn new(requests: usize, most: usize) -> Self {
        Self {
            slots: vec![Waits::default(); requests],
            rows: Vec::with_capacity(requests * most),
            most: 0,
        }
    }

    /// From now on up to `most` pairs of each slot may wait.
    pub fn begin(&mut self, most: usize) {
        self.most = most;
    }

    /// Whether any may.
    pub fn may(&self) -> bool {
        self.most > 0
    }

    /// How many of `pairs` new ones at the end of a request's text wait.
    pub fn share(&self, pairs: usize) -> usize {
        match self.most {
            0 => 0,
            most if pairs <= most => pairs,
            _ => 1,
        }
    }

    /// The features of all that waited are gone.
    pub fn forget(&mut self) {
        self.rows.clear();
        self.slots.fill(Waits::default());
    }

    /// The slot's next pairs wait, whose features are in `rows`.
    pub fn push(&mut self, slot: usize, pages_start: u32, rows: &[u32]) {
        self.slots[slot] = Waits {
            pairs: rows.len(),
            from: self.rows.len(),
            pages_start,
            chained: false,
        };
        self.rows.extend_from_slice(rows);
    }

    /// What a slot waits with.
    pub fn of(&self, slot: usize) -> Waits {
        self.slots[slot]
    }

    /// Where their features are.
    pub fn rows(&self, waits: Waits) -> &[u32] {
        let Range { start, end } = waits.from..waits.from + waits.pairs;
        &self.rows[start..end]
    }

    /// A chain of this step takes in what the slot waits with.
    pub fn chain(&mut self, slot: usize) {
        self.slots[slot].chained = true;
    }

    /// The slot waits no more.
    pub fn done(&mut self, slot: usize) {
        self.slots[slot] = Waits::default();
    }

    /// How many slots there are.
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
        // Of more than may wait only the last does, which the next draft begins with.
        assert_eq!([1, 2, 3, 9].map(|pairs| waiting.share(pairs)), [1, 2, 1, 1]);
        waiting.push(2, 20, &[7, 8]);
        waiting.push(0, 10, &[9]);
        waiting.chain(2);
        let rows = |slot: usize| waiting.rows(waiting.of(slot)).to_vec();
        assert_eq!([0, 1, 2].map(rows), [vec![9], vec![], vec![7, 8]]);
        let told = |waits: Waits| (waits.pairs, waits.pages_start, waits.chained);
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
