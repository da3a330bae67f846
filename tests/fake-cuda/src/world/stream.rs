//! Streams: queues of work that nobody has waited for yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;

use super::graph::{Begun, Capture, MOST_BEGUN, Nodes, Task};
use super::thread;
use crate::abi::Handle;

/// The place behind the first `position` items of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: Handle,
    pub(crate) position: u64,
}

/// An item of a stream's queue.
#[derive(Clone)]
pub(crate) enum Item {
    Task(Task),
    Wait(Point),
    Graph(Arc<Nodes>),
}

impl Item {
    /// Returns true if the item waits for other ranks, perhaps for ever.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Self::Task(task) => task.waits,
            Self::Graph(nodes) => nodes.iter().any(|node| node.task.waits),
            Self::Wait(_) => false,
        }
    }
}

/// Meaning of an event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Never recorded, which counts as done.
    New,
    At(Point),
    /// Recorded while its stream was captured into `graph`, behind those nodes.
    Captured {
        graph: Handle,
        after: Vec<usize>,
    },
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: Handle,
    /// True if this stream and the null stream wait for each other.
    pub(crate) blocking: bool,
    /// Thread that put the last item on the stream.
    pub(crate) user: ThreadId,
    pub(crate) items: VecDeque<Item>,
    /// The first items, as far as they have begun before their turn.
    pub(crate) begun: VecDeque<Box<dyn Begun>>,
    /// Number of items that were ever on the stream, and number of those that ran.
    pushed: u64,
    pub(crate) done: u64,
    /// True while somebody runs the first item.
    pub(crate) busy: bool,
    /// True if the stream was destroyed with work left.
    pub(crate) doomed: bool,
    pub(crate) capture: Option<Capture>,
}

impl Stream {
    pub(crate) fn new(context: Handle, blocking: bool) -> Self {
        Self {
            context,
            blocking,
            user: thread(),
            items: VecDeque::new(),
            begun: VecDeque::new(),
            pushed: 0,
            done: 0,
            busy: false,
            doomed: false,
            capture: None,
        }
    }

    pub(crate) fn push(&mut self, item: Item) {
        self.items.push_back(item);
        self.pushed += 1;
        self.user = thread();
    }

    /// The first task that has not begun, which could begin while those before it run.
    pub(crate) fn next_to_begin(&self) -> Option<Task> {
        match self.items.get(self.begun.len()) {
            Some(Item::Task(task)) if self.begun.len() < MOST_BEGUN => Some(task.clone()),
            _ => None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.done == self.pushed
    }

    /// The place behind all items of the stream; `handle` is the stream's own.
    pub(crate) fn end(&self, handle: Handle) -> Point {
        Point {
            stream: handle,
            position: self.pushed,
        }
    }
}
