//! Time limits of requests.

use std::collections::BTreeSet;

/// Moments in milliseconds, each with a table index.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(BTreeSet<(u64, u32)>);

impl Deadlines {
    pub fn insert(&mut self, at: Option<u64>, index: u32) {
        if let Some(at) = at {
            self.0.insert((at, index));
        }
    }

    pub fn remove(&mut self, at: Option<u64>, index: u32) {
        if let Some(at) = at {
            self.0.remove(&(at, index));
        }
    }

    /// The earliest that has come.
    pub fn due(&self, now: u64) -> Option<u32> {
        let (at, index) = self.0.first()?;
        (*at <= now).then_some(*index)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
