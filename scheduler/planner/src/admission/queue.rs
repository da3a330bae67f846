//! The waiting requests in order of admission, and the time limits of all requests.
//!
//! The choices of one client request (its `n`, or its prompts) share the slots that one request
//! would get. The client request with the fewest slots goes first, and client requests with
//! equally many take turns, as in a round robin. Every choice takes one slot, so the order is a
//! deficit round robin with equal costs.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    IntegrityError, RequestId,
    error::total,
    request::{RequestState, RequestTable, Stage},
};

/// Priority; slots that the client request has before this choice gets one; false if the
/// request already ran; turn; arrival.
type Order = (Reverse<i32>, u32, bool, u64, u64);
/// Order among the choices of one client request: priority; false if it already ran; arrival.
type OwnOrder = (Reverse<i32>, bool, u64);

/// Queue of waiting requests, by table index.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    order: BTreeMap<Order, u32>,
    tokens: u64,
    /// Number of waiting requests that name each DP rank. The list ends with the highest DP
    /// rank that any request named.
    naming: Vec<usize>,
    /// Client requests with several choices.
    parents: BTreeMap<RequestId, Parent>,
}

/// A client request with several choices, some of which wait or run.
#[derive(Debug, Default)]
struct Parent {
    running: u32,
    /// Arrival number of the moment when the client request came or was last served.
    turn: u64,
    waiting: BTreeMap<OwnOrder, Choice>,
}

#[derive(Debug)]
struct Choice {
    index: u32,
    /// Place in the queue.
    key: Option<Order>,
}

fn own_order(request: &RequestState) -> OwnOrder {
    (
        Reverse(request.priority),
        !request.retracted,
        request.arrival,
    )
}

/// Returns the order of a request that is not one of several choices.
fn order(request: &RequestState) -> Order {
    let (priority, retracted, arrival) = own_order(request);
    (priority, 0, retracted, arrival, arrival)
}

impl WaitQueue {
    pub fn push(&mut self, index: u32, request: &RequestState) {
        self.tokens += u64::from(request.len());
        if let Some(named) = request.rest.data_parallel_rank {
            let named = named as usize;
            self.naming.resize(self.naming.len().max(named + 1), 0);
            self.naming[named] += 1;
        }
        let Some(parent) = request.parent else {
            self.order.insert(order(request), index);
            return;
        };
        let family = self.parents.entry(parent).or_default();
        if family.waiting.is_empty() {
            family.turn = request.arrival;
        }
        let choice = Choice { index, key: None };
        family.waiting.insert(own_order(request), choice);
        self.arrange(parent);
    }

    pub fn remove(&mut self, request: &RequestState) {
        let key = match request.parent {
            None => Some(order(request)),
            Some(parent) => self.leave(parent, request),
        };
        if key.is_some_and(|key| self.order.remove(&key).is_some()) {
            self.tokens -= u64::from(request.len());
            if let Some(named) = request.rest.data_parallel_rank {
                self.naming[named as usize] -= 1;
            }
        }
        if let Some(parent) = request.parent {
            self.arrange(parent);
        }
    }

    fn leave(&mut self, parent: RequestId, request: &RequestState) -> Option<Order> {
        let family = self.parents.get_mut(&parent)?;
        family.waiting.remove(&own_order(request))?.key
    }

    /// Records that a request got a slot, as number `turn` of all arrivals and admissions.
    pub fn serve(&mut self, request: &RequestState, turn: u64) {
        if let Some(family) = self.family(request) {
            family.running += 1;
            family.turn = turn;
        }
        self.remove(request);
    }

    /// Records that a request has no slot any more.
    pub fn left_slot(&mut self, request: &RequestState) {
        if let Some(family) = self.family(request) {
            family.running -= 1;
        }
        if let Some(parent) = request.parent {
            self.arrange(parent);
        }
    }

    /// Records that no request has a slot any more.
    pub fn reset_slots(&mut self) {
        let all: Vec<_> = self.parents.keys().copied().collect();
        for parent in all {
            if let Some(family) = self.parents.get_mut(&parent) {
                family.running = 0;
            }
            self.arrange(parent);
        }
    }

    fn family(&mut self, request: &RequestState) -> Option<&mut Parent> {
        self.parents.get_mut(&request.parent?)
    }

    /// Puts the waiting choices of a client request in their places after a change among them.
    fn arrange(&mut self, parent: RequestId) {
        let Self { order, parents, .. } = self;
        let Some(family) = parents.get_mut(&parent) else {
            return;
        };
        if family.running == 0 && family.waiting.is_empty() {
            parents.remove(&parent);
            return;
        }
        let places = family.running..;
        for (place, (own, choice)) in places.zip(&mut family.waiting) {
            let (priority, retracted, arrival) = *own;
            let key = (priority, place, retracted, family.turn, arrival);
            if choice.key != Some(key) {
                if let Some(old) = choice.key.replace(key) {
                    order.remove(&old);
                }
                order.insert(key, choice.index);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the number of waiting requests for which no slot is free. `free` is the number
    /// of free slots of each DP rank. Requests that name a DP rank take its slots first, and
    /// the other requests take the rest. `new` stands for one more request, with the DP rank
    /// that it names.
    pub fn beyond_slots(
        &self,
        free: impl Iterator<Item = usize>,
        new: Option<Option<u32>>,
    ) -> usize {
        let mut anywhere = self.len() + usize::from(new.is_some());
        let (mut beyond, mut left) = (0, 0);
        for (at, free) in free.enumerate() {
            let one_more = new.flatten().is_some_and(|named| named as usize == at);
            let naming = self.naming.get(at).copied().unwrap_or(0) + usize::from(one_more);
            anywhere = anywhere.saturating_sub(naming);
            beyond += naming.saturating_sub(free);
            left += free.saturating_sub(naming);
        }
        beyond + anywhere.saturating_sub(left)
    }

    /// Sum of the known tokens of all waiting requests.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.values().copied()
    }

    /// Returns the next request, and the number of slots that its client request has already.
    pub fn first(&self) -> Option<(u32, u32)> {
        let ((_, place, ..), index) = self.order.first_key_value()?;
        Some((*index, *place))
    }

    /// Returns the number of slots that a client request has before this waiting choice gets
    /// one.
    pub fn place(&self, request: &RequestState) -> u32 {
        let family = request.parent.and_then(|parent| self.parents.get(&parent));
        let choice = family.and_then(|family| family.waiting.get(&own_order(request)));
        choice.and_then(|choice| choice.key).map_or(0, |key| key.1)
    }

    /// Returns the client request that has more than half of `running` slots, and the number of
    /// its slots.
    pub fn crowding(&self, running: usize) -> Option<(RequestId, usize)> {
        let mut all = self.parents.iter();
        all.find_map(|(parent, family)| {
            let own = family.running as usize;
            (own > 1 && 2 * own > running).then_some((*parent, own))
        })
    }

    /// Checks the counts of client requests and of DP ranks against the requests.
    pub fn check(&self, requests: &RequestTable) -> Result<(), IntegrityError> {
        for (at, kept) in (0..).zip(&self.naming) {
            let all = requests.iter().map(|(_, request)| request);
            let waiting = all.filter(|request| request.stage == Stage::Waiting);
            let naming = waiting.filter(|request| request.rest.data_parallel_rank == Some(at));
            let counted = naming.count() as u64;
            total("requests that name a DP rank", *kept as u64, counted)?;
        }
        let choices = |stage: Stage| {
            let all = requests.iter().map(|(_, request)| request);
            all.filter(move |request| request.parent.is_some() && request.stage == stage)
        };
        let running = self.parents.values().map(|family| family.running);
        let kept = running.map(u64::from).sum();
        total(
            "running choices",
            kept,
            choices(Stage::Running).count() as u64,
        )?;
        for request in choices(Stage::Waiting) {
            let before = |other: &&RequestState| {
                let waits_before = || own_order(other) < own_order(request);
                other.parent == request.parent && (other.stage == Stage::Running || waits_before())
            };
            let all = choices(Stage::Running).chain(choices(Stage::Waiting));
            let counted = all.filter(before).count() as u64;
            total("slots before a choice", self.place(request).into(), counted)?;
        }
        Ok(())
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

    /// Returns the request of the earliest moment, if that moment has come.
    pub fn due(&self, now: u64) -> Option<u32> {
        let (at, index) = self.0.first()?;
        (*at <= now).then_some(*index)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
