//! What goes wrong, and when.

use std::collections::{BTreeMap, VecDeque};

/// What a hub, or the network before it, does instead of a whole answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection breaks after so many bytes.
    DropAfter(usize),
    /// Nothing comes after so many bytes, and the connection stays.
    StallAfter(usize),
    /// The answer is well formed and has so many bytes alone.
    Short(usize),
    /// One byte is another.
    Damaged,
    /// The whole file, whatever part was asked for.
    Whole,
    /// More bytes than the file has.
    Longer,
    /// The file's first bytes in the place of those that were asked for.
    Again,
    /// A byte now and then.
    Drip,
    /// Other headers than those that are right; the content is.
    Says(Vec<(&'static str, String)>),
    /// Something else.
    Instead(Vec<u8>),
    /// A refusal, with headers.
    Status(u16, Vec<(&'static str, String)>),
    /// A redirect to this address.
    Redirect(String),
}

/// By what is asked for, in the order of requests.
#[derive(Default)]
pub(crate) struct Faults(BTreeMap<String, VecDeque<Fault>>);

impl Faults {
    pub(crate) fn add(&mut self, what: &str, fault: Fault) {
        self.0.entry(what.to_owned()).or_default().push_back(fault);
    }

    pub(crate) fn next(&mut self, what: &str) -> Option<Fault> {
        self.0.get_mut(what)?.pop_front()
    }
}
