//! Streams and events.

use std::ffi::{c_int, c_uint};

use crate::abi::{Answer, Handle, Out, Refusal, export};
use crate::run::{Goal, poll, wait};
use crate::settings;
use crate::world::codes::{INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::world::stream::{Event, Point, Stream};
use crate::world::{captured_event, enter};

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;

fn create(flags: c_uint) -> Answer<Handle> {
    if flags > NON_BLOCKING {
        let reason = format!("flags {flags} of a stream");
        return Err(Refusal::new(INVALID_VALUE, reason));
    }
    let mut world = enter()?;
    let (stream, context) = (world.handle(), world.context);
    let made = Stream::new(context, flags != NON_BLOCKING);
    world.streams.insert(stream, made);
    Ok(stream)
}

/// `CU_EVENT_DISABLE_TIMING`
const UNTIMED: c_uint = 2;
/// Milliseconds of every item of a stream, since a fake has no speed of its own. A host needs
/// less to queue an item, so tests can tell the two apart.
const ITEM: f32 = 1.0;

/// The place where the event was recorded, if that place has been reached.
fn timed(event: Handle) -> Answer<Point> {
    let world = enter()?;
    let refuse = |why| Err(Refusal::new(INVALID_HANDLE, why));
    match world.events.get(&event) {
        _ if world.untimed.contains(&event) => refuse("an event without a time"),
        None => refuse("no such event"),
        Some(Event::New) => refuse("an event that was not recorded"),
        Some(Event::At(point)) if world.is_done(*point) => Ok(*point),
        Some(Event::At(_)) => Err(Refusal::quiet(NOT_READY)),
        Some(Event::Captured { .. }) => Err(captured_event()),
    }
}

/// The goal of a wait for the event; `None` if the event is new.
fn goal(event: Handle) -> Answer<(Handle, Option<Goal>)> {
    let world = enter()?;
    match world.events.get(&event) {
        None => Err(Refusal::new(INVALID_HANDLE, "no such event")),
        Some(Event::New) => Ok((world.context, None)),
        Some(Event::At(point)) => Ok((world.context, Some(Goal::Point(*point)))),
        Some(Event::Captured { .. }) => Err(captured_event()),
    }
}

export! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) {
        stream.set(create(flags)?);
        Ok(())
    }

    /// A priority is a wish only, so the order may be any.
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, _priority: c_int) {
        stream.set(create(flags)?);
        Ok(())
    }

    /// Queued work of the stream goes on.
    fn cuStreamDestroy_v2(stream: Handle) {
        let mut world = enter()?;
        let known = world.streams.contains_key(&stream);
        world.destroy_stream(stream);
        let missing = || Refusal::new(INVALID_HANDLE, "no such stream");
        known.then_some(()).ok_or_else(missing)
    }

    fn cuStreamSynchronize(stream: Handle) {
        let mut world = enter()?;
        let (context, stream) = (world.context, world.stream(stream)?);
        world.refuse_wait(stream)?;
        drop(world);
        wait(context, Goal::Stream(stream))
    }

    fn cuStreamQuery(stream: Handle) {
        let mut world = enter()?;
        let (context, stream) = (world.context, world.stream(stream)?);
        world.refuse_wait(stream)?;
        drop(world);
        poll(context, Goal::Stream(stream))
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        let mut world = enter()?;
        let stream = world.stream(stream)?;
        if settings::forgets("cuStreamWaitEvent") {
            return Ok(());
        }
        world.wait_event(stream, event)
    }

    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        let mut world = enter()?;
        let made = world.handle();
        let context = world.context;
        world.events.insert(made, Event::New);
        if flags & UNTIMED != 0 {
            world.untimed.insert(made);
        }
        world.event_contexts.insert(made, context);
        event.set(made);
        Ok(())
    }

    /// Waits for the event go on.
    fn cuEventDestroy_v2(event: Handle) {
        let mut world = enter()?;
        world.event_contexts.remove(&event);
        world.untimed.remove(&event);
        let known = world.events.remove(&event);
        let missing = || Refusal::new(INVALID_HANDLE, "no such event");
        known.map(|_| ()).ok_or_else(missing)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        let mut world = enter()?;
        let stream = world.stream(stream)?;
        let of_stream = world.streams.get(&stream).map(|at| at.context);
        if world.event_contexts.get(&event).copied() != of_stream {
            let reason = "an event is recorded in streams of its own context alone";
            return Err(Refusal::new(INVALID_HANDLE, reason));
        }
        world.record_event(event, stream)
    }

    fn cuEventSynchronize(event: Handle) {
        let (context, goal) = goal(event)?;
        if settings::forgets("cuEventSynchronize") {
            return Ok(());
        }
        goal.map_or(Ok(()), |goal| wait(context, goal))
    }

    /// Both events must be of one stream: work of two streams may run at the same time or not.
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        let (start, end) = (timed(start)?, timed(end)?);
        if start.stream != end.stream {
            let reason = "the fake driver times within a stream alone";
            return Err(Refusal::new(INVALID_VALUE, reason));
        }
        let items = end.position.saturating_sub(start.position);
        milliseconds.set(items as f32 * ITEM);
        Ok(())
    }

    fn cuEventQuery(event: Handle) {
        enter()?.refuse_unsafe()?;
        let (context, goal) = goal(event)?;
        goal.map_or(Ok(()), |goal| poll(context, goal))
    }
}
