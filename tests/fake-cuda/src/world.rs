//! State of the fake driver: contexts, their streams, events, graphs and memory.

mod capture;
pub(crate) mod codes;
pub(crate) mod graph;
pub(crate) mod memory;
pub(crate) mod stream;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::abi::{Answer, Handle, Refusal};
use codes::{CAPTURE_IMPLICIT, INVALID_CONTEXT, INVALID_HANDLE};
use graph::{Executable, Node, Nodes, Overlap, Recording, Task, Work};
use memory::Memory;
use stream::{Event, Item, Point, Stream};

pub(crate) use capture::captured_event;

/// The two handles of the null stream.
const NULL_STREAM: [Handle; 2] = [0, 1];

/// A device's primary context.
pub(crate) struct Context {
    pub(crate) device: i32,
    /// Null stream of the context.
    null: Handle,
    /// The failure that broke the context; every call fails with it from then on.
    broken: Option<Refusal>,
}

/// All objects of this process.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) contexts: BTreeMap<Handle, Context>,
    pub(crate) streams: BTreeMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    /// The context that each event was made in.
    pub(crate) event_contexts: HashMap<Handle, Handle>,
    /// Events that note no time.
    pub(crate) untimed: BTreeSet<Handle>,
    /// Captures under way, by the handle of the graph to come.
    recordings: HashMap<Handle, Recording>,
    pub(crate) graphs: HashMap<Handle, Nodes>,
    pub(crate) executables: HashMap<Handle, Executable>,
    pub(crate) memory: Memory,
    handles: Handle,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The calling thread's context; zero for none.
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
    static ACTS_FOR: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

pub(crate) fn lock() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handle of the calling thread's context; zero for none.
pub(crate) fn current() -> Handle {
    CURRENT.get()
}

pub(crate) fn set_current(context: Handle) {
    CURRENT.set(context);
}

/// The world, for a call in the calling thread's context.
pub(crate) struct Entered {
    world: MutexGuard<'static, World>,
    pub(crate) context: Handle,
}

/// Begins a call that needs a working context.
pub(crate) fn enter() -> Answer<Entered> {
    let (world, context) = (lock(), current());
    world.check(context)?;
    Ok(Entered { world, context })
}

impl Deref for Entered {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Entered {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Entered {
    /// The stream with the handle `handle`, seen from the calling thread.
    pub(crate) fn stream(&self, handle: Handle) -> Answer<Handle> {
        let null = NULL_STREAM.contains(&handle);
        let found = null.then(|| self.contexts.get(&self.context).map(|context| context.null));
        let stream = found.flatten().unwrap_or(handle);
        let known = self.streams.contains_key(&stream);
        let missing = || Refusal::new(INVALID_HANDLE, format!("{handle:#x} is no stream"));
        known.then_some(stream).ok_or_else(missing)
    }

    /// Puts work on a stream, or into the graph that the stream is captured into.
    pub(crate) fn push(&mut self, handle: Handle, name: &'static str, work: Work) -> Answer {
        let (waits, overlap) = (false, Overlap::None);
        self.push_task(
            handle,
            Task {
                name,
                work,
                waits,
                overlap,
            },
        )
    }

    /// Puts a task on a stream, or into the graph that the stream is captured into.
    pub(crate) fn push_task(&mut self, handle: Handle, task: Task) -> Answer {
        let stream = self.stream(handle)?;
        self.world.put(stream, task)
    }
}

impl World {
    /// A new handle, which no other object of any kind has.
    pub(crate) fn handle(&mut self) -> Handle {
        self.handles += 1;
        0x1000 + self.handles * 0x10
    }

    /// Refuses calls if the context is missing or broken.
    pub(crate) fn check(&self, context: Handle) -> Answer {
        match self.contexts.get(&context) {
            None => Err(Refusal::new(INVALID_CONTEXT, "the thread has no context")),
            Some(context) => context.broken.clone().map_or(Ok(()), Err),
        }
    }

    /// From now on every call in `context` fails with `cause`.
    pub(crate) fn break_context(&mut self, context: Handle, cause: &Refusal) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.broken.get_or_insert_with(|| cause.clone());
        }
    }

    /// The context of a device; made if missing.
    pub(crate) fn retain(&mut self, device: i32) -> Handle {
        let known = self.contexts.iter().find(|(_, at)| at.device == device);
        if let Some((handle, _)) = known {
            return *handle;
        }
        let (context, null) = (self.handle(), self.handle());
        self.streams.insert(null, Stream::new(context, true));
        let made = Context {
            device,
            null,
            broken: None,
        };
        self.contexts.insert(context, made);
        context
    }

    /// The device of an existing context.
    pub(crate) fn device(&self, context: Handle) -> i32 {
        self.contexts.get(&context).map_or(0, |at| at.device)
    }

    fn put(&mut self, stream: Handle, task: Task) -> Answer {
        if let Some(after) = self.record(stream)? {
            self.check_programmatic(stream, &task, &after)?;
            return self.add_node(stream, Node { task, after });
        }
        self.queue(stream, Item::Task(task))
    }

    /// Puts an item on a stream that isn't captured.
    pub(crate) fn queue(&mut self, stream: Handle, item: Item) -> Answer {
        self.heed_null_stream(stream)?;
        if let Some(at) = self.streams.get_mut(&stream) {
            at.push(item);
        }
        Ok(())
    }

    /// Makes the null stream and a blocking stream wait for each other: later work waits for
    /// earlier work of the other.
    fn heed_null_stream(&mut self, stream: Handle) -> Answer {
        let Some(at) = self.streams.get(&stream).filter(|at| at.blocking) else {
            return Ok(());
        };
        let context = at.context;
        let null = self.contexts.get(&context).map_or(0, |at| at.null);
        let blocking = self.streams.iter().filter(|(other, at)| {
            let concerned = stream == null || **other == null;
            at.context == context && at.blocking && **other != stream && concerned
        });
        let (mut points, mut captured) = (Vec::new(), false);
        for (other, at) in blocking {
            captured |= at.capture.is_some();
            if !at.is_idle() {
                points.push(at.end(*other));
            }
        }
        if stream == null && captured {
            let reason = "the null stream waits for one that is being captured";
            return Err(Refusal::new(CAPTURE_IMPLICIT, reason));
        }
        let queue = self.streams.get_mut(&stream);
        if let Some(at) = queue {
            points
                .into_iter()
                .for_each(|point| at.push(Item::Wait(point)));
        }
        Ok(())
    }

    /// Returns true if everything before the point has run.
    pub(crate) fn is_done(&self, point: Point) -> bool {
        let stream = self.streams.get(&point.stream);
        stream.is_none_or(|at| at.done >= point.position)
    }

    /// Removes a stream once its work is done.
    pub(crate) fn destroy_stream(&mut self, stream: Handle) {
        if let Some(at) = self.streams.get_mut(&stream) {
            at.doomed = true;
            if at.is_idle() {
                self.streams.remove(&stream);
            }
        }
    }
}

/// The calling thread, or the thread that it acts for, as streams and captures note it.
pub(crate) fn thread() -> ThreadId {
    ACTS_FOR
        .get()
        .unwrap_or_else(|| std::thread::current().id())
}

/// Makes the calling thread act for `caller` in the caller's context: a library's own thread
/// does the work that `caller` has asked for.
pub(crate) fn act_for(caller: ThreadId, context: Handle) {
    ACTS_FOR.set(Some(caller));
    set_current(context);
}
