//! Slot numbers, which name requests on the workers.

/// Free slots, and slots whose close has not travelled in a plan yet.
///
/// A slot is free as soon as it closes. Any plan that could open the slot again carries its
/// close too, and workers close before they open.
#[derive(Debug)]
pub(super) struct Slots {
    count: u32,
    free: Vec<u32>,
    closing: Vec<u32>,
}

impl Slots {
    pub fn new(count: u32) -> Self {
        Self {
            count,
            free: (0..count).rev().collect(),
            closing: Vec::new(),
        }
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub fn close(&mut self, slot: u32) {
        self.closing.push(slot);
        self.free.push(slot);
    }

    /// Moves the closes into a plan that is certain to be sent.
    pub fn drain_closes(&mut self, closes: &mut Vec<u32>) {
        closes.append(&mut self.closing);
    }

    pub fn iter_free(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().copied()
    }

    pub fn reset(&mut self) {
        self.closing.clear();
        self.free.clear();
        self.free.extend((0..self.count).rev());
    }
}
