//! Captures and graphs.

use std::ffi::{c_int, c_ulonglong};
use std::sync::Arc;

use crate::abi::{Handle, Out, Refusal, export};
use crate::world::codes::{CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE};
use crate::world::enter;
use crate::world::graph::{Executable, Mode};
use crate::world::stream::Item;

/// Answers of `cuStreamIsCapturing`: no capture, a capture, a spoiled capture.
const STATES: [c_int; 3] = [0, 1, 2];

fn no_graph() -> Refusal {
    Refusal::new(INVALID_HANDLE, "no such graph")
}

export! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) {
        let mode = match mode {
            0 => Mode::Global,
            1 => Mode::ThreadLocal,
            2 => Mode::Relaxed,
            _ => return Err(Refusal::new(INVALID_VALUE, "no such mode of captures")),
        };
        let mut world = enter()?;
        let stream = world.stream(stream)?;
        world.begin_capture(stream, mode)
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.set(0);
        let mut world = enter()?;
        let stream = world.stream(stream)?;
        graph.set(world.end_capture(stream)?);
        Ok(())
    }

    fn cuStreamIsCapturing(stream: Handle, state: Out<c_int>) {
        let world = enter()?;
        let capture = world.capture_of(world.stream(stream)?);
        let works = capture.map(|(_, works)| if works { 1 } else { 2 });
        state.set(STATES[works.unwrap_or(0)]);
        Ok(())
    }

    fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, _flags: c_ulonglong) {
        let mut world = enter()?;
        let nodes = world.graphs.get(&graph).cloned().ok_or_else(no_graph)?;
        let context = world.context;
        let device = world.contexts.get(&context).map_or(0, |context| context.device);
        let nodes = Arc::new(nodes);
        let ready = Executable { nodes, device };
        world.memory.charge(device, ready.bytes())?;
        let made = world.handle();
        world.executables.insert(made, ready);
        executable.set(made);
        Ok(())
    }

    /// The host has given everything already, so an upload does nothing.
    fn cuGraphUpload(executable: Handle, stream: Handle) {
        let world = enter()?;
        world.stream(stream)?;
        let known = world.executables.contains_key(&executable);
        known.then_some(()).ok_or_else(no_graph)
    }

    fn cuGraphLaunch(executable: Handle, stream: Handle) {
        let mut world = enter()?;
        let stream = world.stream(stream)?;
        let ready = world.executables.get(&executable);
        let nodes = ready.map(|ready| ready.nodes.clone());
        let nodes = nodes.ok_or_else(no_graph)?;
        if world.capture_of(stream).is_some() {
            let reason = "the fake driver puts no graphs into graphs";
            return Err(Refusal::new(CAPTURE_UNSUPPORTED, reason));
        }
        world.queue(stream, Item::Graph(nodes))
    }

    fn cuGraphExecDestroy(executable: Handle) {
        let mut world = enter()?;
        let known = world.executables.remove(&executable).ok_or_else(no_graph)?;
        world.memory.discharge(known.device, known.bytes());
        Ok(())
    }

    fn cuGraphDestroy(graph: Handle) {
        let known = enter()?.graphs.remove(&graph);
        known.map(|_| ()).ok_or_else(no_graph)
    }
}
