//! The waiting requests, in order of admission.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::table::Entry;

/// Priority, then requests that already ran, then arrival.
type Order = (Reverse<i32>, bool, u64);

/// Waiting requests by table index.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    order: BTreeMap<Order, u32>,
    tokens: u64,
}

fn order(entry: &Entry) -> Order {
    (Reverse(entry.priority), !entry.retracted, entry.arrival)
}

impl WaitQueue {
    pub fn push(&mut self, index: u32, entry: &Entry) {
        self.tokens += u64::from(entry.len());
        self.order.insert(order(entry), index);
    }

    pub fn remove(&mut self, entry: &Entry) {
        if self.order.remove(&order(entry)).is_some() {
            self.tokens -= u64::from(entry.len());
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Sum of the requests' known tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.values().copied()
    }

    pub fn first(&self) -> Option<u32> {
        self.order.first_key_value().map(|(_, index)| *index)
    }
}
