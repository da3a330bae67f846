//! The waiting requests in order of admission, and the time limits of all.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::request::RequestState;

/// Priority, then requests that already ran, then arrival.
type Order = (Reverse<i32>, bool, u64);

/// Waiting requests by table index.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    order: BTreeMap<Order, u32>,
    tokens: u64,
}

fn order(request: &RequestState) -> Order {
    (
        Reverse(request.priority),
        !request.retracted,
        request.arrival,
    )
}

impl WaitQueue {
    pub fn push(&mut self, index: u32, request: &RequestState) {
        self.tokens += u64::from(request.len());
        self.order.insert(order(request), index);
    }

    pub fn remove(&mut self, request: &RequestState) {
        if self.order.remove(&order(request)).is_some() {
            self.tokens -= u64::from(request.len());
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

/// Moments in milliseconds, each with a table index.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(u64, u32)>);

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
