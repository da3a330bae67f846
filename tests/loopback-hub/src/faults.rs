//! Faults of the loopback hub, and their order.

use std::collections::{BTreeMap, VecDeque};

/// A fault of a hub, or of the network before it, in the place of a whole answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection breaks after this number of bytes.
    DropAfter(usize),
    /// After this number of bytes no more come, and the connection stays open.
    StallAfter(usize),
    /// The answer is well formed, but has only this number of bytes.
    Short(usize),
    /// One byte is wrong.
    Damaged,
    /// The answer is the whole file, although a part was asked for.
    Whole,
    /// The answer has more bytes than the file.
    Longer,
    /// The answer has the file's first bytes in the place of the bytes that were asked for.
    Again,
    /// The answer comes a byte at a time, with pauses.
    Drip,
    /// The content is right, but these headers are wrong.
    Says(Vec<(&'static str, String)>),
    /// The answer has this content instead.
    Instead(Vec<u8>),
    /// A refusal, with headers.
    Status(u16, Vec<(&'static str, String)>),
    /// A redirect to this address.
    Redirect(String),
}

/// Faults to come, by the file or model that is asked for, in the order of requests.
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
