//! Streams and events.

use std::ffi::{c_int, c_uint};

use crate::abi::{Answer, Handle, Out, Refusal, export};
use crate::run::{Goal, poll, wait};
use crate::settings;
use crate::world::codes::{INVALID_HANDLE, INVALID_VALUE};
use crate::world::stream::{Event, Stream};
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

/// What somebody who waits for the event waits for; nothing, if it is new.
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

    /// A priority is a wish, and the order is anything.
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, _priority: c_int) {
        stream.set(create(flags)?);
        Ok(())
    }

    /// Its work goes on.
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

    fn cuEventCreate(event: Out<Handle>, _flags: c_uint) {
        let mut world = enter()?;
        let made = world.handle();
        let context = world.context;
        world.events.insert(made, Event::New);
        world.event_contexts.insert(made, context);
        event.set(made);
        Ok(())
    }

    /// Who waits for it goes on waiting.
    fn cuEventDestroy_v2(event: Handle) {
        let mut world = enter()?;
        world.event_contexts.remove(&event);
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

    fn cuEventQuery(event: Handle) {
        enter()?.refuse_unsafe()?;
        let (context, goal) = goal(event)?;
        goal.map_or(Ok(()), |goal| poll(context, goal))
    }
}
