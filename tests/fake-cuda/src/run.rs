//! Runs queued work of streams, when somebody waits and not before.

use std::collections::BTreeSet;
use std::sync::{Condvar, PoisonError};

use crate::abi::{Answer, Handle, Refusal};
use crate::order;
use crate::world::codes::{NOT_READY, UNKNOWN};
use crate::world::graph::Begun;
use crate::world::stream::{Item, Point, Stream};
use crate::world::{World, graph, lock, thread};

/// Notified whenever somebody has run an item.
static RAN: Condvar = Condvar::new();

/// The goal of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// All work of a stream.
    Stream(Handle),
    /// All work of a context.
    Context(Handle),
    /// The calling thread's work of a context.
    Mine(Handle),
    /// All work of a stream at the time when an event was recorded.
    Point(Point),
}

impl Goal {
    fn is_reached(self, world: &World) -> bool {
        match self {
            Self::Point(point) => world.is_done(point),
            Self::Stream(_) | Self::Context(_) | Self::Mine(_) => {
                let mut streams = self.streams(world).into_iter();
                streams.all(|at| world.streams.get(&at).is_none_or(Stream::is_idle))
            }
        }
    }

    fn streams(self, world: &World) -> Vec<Handle> {
        match self {
            Self::Stream(stream) => vec![stream],
            Self::Context(context) => world.of_context(context),
            Self::Mine(context) => {
                let mut streams = world.of_context(context);
                let mine = |at: &Stream| at.user == thread();
                streams.retain(|at| world.streams.get(at).is_some_and(mine));
                streams
            }
            Self::Point(point) => vec![point.stream],
        }
    }
}

/// Runs items that can run, in an order drawn from the seed, until `goal` is reached.
///
/// # Errors
/// A failure on the way in `context`'s streams; or all streams wait for each other.
pub(crate) fn wait(context: Handle, goal: Goal) -> Answer {
    let mut world = lock();
    loop {
        world.check(context)?;
        if goal.is_reached(&world) {
            return Ok(());
        }
        if let Some((stream, item, begun)) = next(&mut world, goal) {
            drop(world);
            // A failure ends this wait only if it is told here; it breaks one context.
            carry_out(stream, item, begun)?;
            world = lock();
        } else if world.streams.values().any(|at| at.busy) {
            world = RAN.wait(world).unwrap_or_else(PoisonError::into_inner);
        } else {
            return Err(Refusal::new(UNKNOWN, "streams wait for each other"));
        }
    }
}

/// Runs one item at most, for the time between two queries.
///
/// # Errors
/// [`NOT_READY`]; or the failure of the item.
pub(crate) fn poll(context: Handle, goal: Goal) -> Answer {
    let mut world = lock();
    world.check(context)?;
    if !goal.is_reached(&world)
        && let Some((stream, item, begun)) = next(&mut world, goal)
    {
        drop(world);
        carry_out(stream, item, begun)?;
        world = lock();
    }
    let reached = goal.is_reached(&world);
    reached
        .then_some(())
        .ok_or_else(|| Refusal::quiet(NOT_READY))
}

/// Waits until the device runs nothing of `context`. Queued items may be left.
pub(crate) fn settle(context: Handle) {
    let runs = |world: &World| {
        let mut streams = world.streams.values();
        streams.any(|at| at.context == context && at.busy)
    };
    let mut world = lock();
    while runs(&world) {
        world = RAN.wait(world).unwrap_or_else(PoisonError::into_inner);
    }
}

/// A stream, the item that it goes on with, and what has begun of that before its turn.
type Taken = (Handle, Item, Option<Box<dyn Begun>>);

/// Takes an item of one of the streams that can go on.
///
/// These are the streams that the goal needs, and the streams that the calling thread used
/// last. Streams of other threads may wait for something that this thread still has to do.
fn next(world: &mut World, goal: Goal) -> Option<Taken> {
    let needed = needed(world, goal);
    let me = thread();
    let ready = |(handle, at): &(&Handle, &Stream)| {
        let mine = at.user == me || needed.contains(handle);
        let free = match at.items.front() {
            None => false,
            Some(Item::Wait(point)) => world.is_done(*point),
            Some(Item::Task(_) | Item::Graph(_)) => true,
        };
        mine && !at.busy && free
    };
    let ready: Vec<Handle> = world
        .streams
        .iter()
        .filter(ready)
        .map(|(at, _)| *at)
        .collect();
    if ready.is_empty() {
        return None;
    }
    let stream = ready[order::below(ready.len())];
    let at = world.streams.get_mut(&stream)?;
    at.busy = true;
    Some((stream, at.items.pop_front()?, at.begun.pop_front()))
}

/// The goal's streams, the streams that these wait for, and so on.
fn needed(world: &World, goal: Goal) -> BTreeSet<Handle> {
    let mut needed = BTreeSet::new();
    let mut left = goal.streams(world);
    while let Some(stream) = left.pop() {
        if needed.insert(stream)
            && let Some(at) = world.streams.get(&stream)
        {
            left.extend(at.items.iter().filter_map(|item| match item {
                Item::Wait(point) => Some(point.stream),
                Item::Task(_) | Item::Graph(_) => None,
            }));
        }
    }
    needed
}

/// Runs an item. An item that waits for other ranks runs on another thread, since the caller
/// may have to abort it.
fn carry_out(stream: Handle, item: Item, begun: Option<Box<dyn Begun>>) -> Answer {
    let waits = item.waits();
    let run_and_finish = move || {
        let answer = begin_behind(stream, &item).and_then(|()| run(&item, begun));
        finish(&mut lock(), stream, &answer);
        answer
    };
    if waits {
        std::thread::spawn(run_and_finish);
        return Ok(());
    }
    run_and_finish()
}

/// Begins kernels behind an item that is about to run, as far as they may begin before its end.
fn begin_behind(stream: Handle, item: &Item) -> Answer {
    let mut before = match item {
        Item::Task(task) => task.clone(),
        Item::Wait(_) | Item::Graph(_) => return Ok(()),
    };
    while before.is_kernel() {
        let next = lock().streams.get(&stream).and_then(Stream::next_to_begin);
        let Some(next) = next else { break };
        let Some(begun) = next.begin()? else { break };
        if let Some(at) = lock().streams.get_mut(&stream) {
            at.begun.push_back(begun);
        }
        before = next;
    }
    Ok(())
}

fn run(item: &Item, begun: Option<Box<dyn Begun>>) -> Answer {
    match item {
        Item::Wait(_) => Ok(()),
        Item::Task(task) => task.run(begun),
        Item::Graph(nodes) => graph::run(nodes),
    }
}

/// Notes that the stream's first item is done.
fn finish(world: &mut World, stream: Handle, answer: &Answer) {
    if let Some(at) = world.streams.get_mut(&stream) {
        at.busy = false;
        at.done += 1;
        let (context, gone) = (at.context, at.doomed && at.is_idle());
        if gone {
            world.streams.remove(&stream);
        }
        if let Err(cause) = answer {
            world.break_context(context, cause);
        }
    }
    RAN.notify_all();
}
