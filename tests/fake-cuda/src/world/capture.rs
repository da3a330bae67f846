//! Captures: work that becomes a graph, and calls that CUDA refuses meanwhile.
//!
//! CUDA Driver API, "Stream Management", and the programming guide's "Creating a
//! Graph Using Stream Capture".

use super::codes::{
    CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED, CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, CAPTURED_EVENT, ILLEGAL_STATE, INVALID_HANDLE,
    INVALID_VALUE,
};
use super::graph::{Capture, Mode, Node, Overlap, Recording, Task, reaches};
use super::stream::{Event, Item};
use super::{World, thread};
use crate::abi::{Answer, Handle, Refusal};

impl World {
    pub(crate) fn begin_capture(&mut self, stream: Handle, mode: Mode) -> Answer {
        let null = self.contexts.values().any(|context| context.null == stream);
        if null {
            let reason = "the null stream cannot be captured";
            return Err(Refusal::new(CAPTURE_UNSUPPORTED, reason));
        }
        let graph = self.handle();
        let at = self.streams.get_mut(&stream);
        let at = at.ok_or_else(|| Refusal::quiet(INVALID_HANDLE))?;
        if at.capture.is_some() {
            let reason = "the stream is being captured already";
            return Err(Refusal::new(ILLEGAL_STATE, reason));
        }
        let tail = Vec::new();
        at.capture = Some(Capture { graph, tail });
        let recording = Recording {
            nodes: Vec::new(),
            origin: stream,
            mode,
            thread: thread(),
            invalid: false,
        };
        self.recordings.insert(graph, recording);
        Ok(())
    }

    /// Ends the capture in any case. Returns the graph, unless the capture was spoiled.
    pub(crate) fn end_capture(&mut self, stream: Handle) -> Answer<Handle> {
        let capture = self.streams.get(&stream).and_then(|at| at.capture.clone());
        let Some(Capture { graph, tail }) = capture else {
            let reason = "the stream is not being captured";
            return Err(Refusal::new(ILLEGAL_STATE, reason));
        };
        let missing = || Refusal::quiet(CAPTURE_INVALIDATED);
        let recording = self.recordings.get(&graph).ok_or_else(missing)?;
        if recording.origin != stream {
            let reason = "a capture ends on the stream where it began";
            return Err(Refusal::new(CAPTURE_UNMATCHED, reason));
        }
        if recording.mode != Mode::Relaxed && recording.thread != thread() {
            let reason = "a capture ends on the thread where it began, unless it is relaxed";
            return Err(Refusal::new(CAPTURE_WRONG_THREAD, reason));
        }
        let mut joined = true;
        for at in self.streams.values_mut() {
            if let Some(other) = at.capture.take_if(|capture| capture.graph == graph) {
                joined &= reaches(&recording.nodes, &tail, &other.tail);
            }
        }
        let recording = self.recordings.remove(&graph).ok_or_else(missing)?;
        if recording.invalid {
            let reason = "something that a capture refuses happened during it";
            return Err(Refusal::new(CAPTURE_INVALIDATED, reason));
        }
        if !joined {
            let reason = "a forked stream was not joined before the capture ended";
            return Err(Refusal::new(CAPTURE_UNJOINED, reason));
        }
        self.graphs.insert(graph, recording.nodes);
        Ok(graph)
    }

    /// The graph that a stream is captured into, and true if the capture is not spoiled.
    pub(crate) fn capture_of(&self, stream: Handle) -> Option<(Handle, bool)> {
        let capture = self.streams.get(&stream)?.capture.as_ref()?;
        let recording = self.recordings.get(&capture.graph)?;
        Some((capture.graph, !recording.invalid))
    }

    /// Predecessors of the next node, if the stream is captured.
    ///
    /// # Errors
    /// The capture has been spoiled.
    pub(super) fn record(&self, stream: Handle) -> Answer<Option<Vec<usize>>> {
        match self.capture_of(stream) {
            None => Ok(None),
            Some((_, false)) => {
                let reason = "the stream's capture has been spoiled";
                Err(Refusal::new(CAPTURE_INVALIDATED, reason))
            }
            Some((_, true)) => {
                let capture = self.streams.get(&stream).and_then(|at| at.capture.as_ref());
                Ok(capture.map(|capture| capture.tail.clone()))
            }
        }
    }

    /// Refuses a programmatic launch behind anything but one kernel: edges of that kind lead
    /// from kernels to kernels.
    pub(super) fn check_programmatic(
        &self,
        stream: Handle,
        task: &Task,
        after: &[usize],
    ) -> Answer {
        if !matches!(task.overlap, Overlap::Programmatic(_)) {
            return Ok(());
        }
        let graph = self.capture_of(stream).map(|(graph, _)| graph);
        let recording = graph.and_then(|graph| self.recordings.get(&graph));
        let behind_kernel = recording.is_some_and(|recording| match after {
            [before] => recording.nodes[*before].task.is_kernel(),
            _ => false,
        });
        let reason = "a programmatic launch in a capture comes behind one kernel";
        let refused = || Refusal::new(INVALID_VALUE, reason);
        behind_kernel.then_some(()).ok_or_else(refused)
    }

    /// Appends a node to the graph that the stream is captured into.
    pub(super) fn add_node(&mut self, stream: Handle, node: Node) -> Answer {
        let capture = self.streams.get_mut(&stream);
        if let Some(capture) = capture.and_then(|at| at.capture.as_mut())
            && let Some(recording) = self.recordings.get_mut(&capture.graph)
        {
            capture.tail = vec![recording.nodes.len()];
            recording.nodes.push(node);
        }
        Ok(())
    }

    pub(crate) fn record_event(&mut self, event: Handle, stream: Handle) -> Answer {
        let captured = self.record(stream)?;
        let now = match captured.zip(self.capture_of(stream)) {
            Some((after, (graph, _))) => Event::Captured { graph, after },
            None => {
                // The event also waits for all work that the stream waits for implicitly.
                self.heed_null_stream(stream)?;
                let end = self.streams.get(&stream).map(|at| at.end(stream));
                end.map_or(Event::New, Event::At)
            }
        };
        match self.events.get_mut(&event) {
            Some(known) => *known = now,
            None => return Err(Refusal::new(INVALID_HANDLE, "no such event")),
        }
        Ok(())
    }

    /// Makes a stream wait for the event, or join the capture that the event was recorded in.
    pub(crate) fn wait_event(&mut self, stream: Handle, event: Handle) -> Answer {
        let event = self.events.get(&event).cloned();
        let event = event.ok_or_else(|| Refusal::new(INVALID_HANDLE, "no such event"))?;
        let own = self.record(stream)?.and(self.capture_of(stream));
        match (own, event) {
            (None, Event::New) => Ok(()),
            (None, Event::At(point)) => self.queue(stream, Item::Wait(point)),
            (None, Event::Captured { graph, after }) => {
                if !self.recordings.contains_key(&graph) {
                    return Err(captured_event());
                }
                if let Some(at) = self.streams.get_mut(&stream) {
                    at.capture = Some(Capture { graph, tail: after });
                }
                Ok(())
            }
            (
                Some((graph, _)),
                Event::Captured {
                    graph: other,
                    after,
                },
            ) if graph == other => {
                let at = self.streams.get_mut(&stream);
                if let Some(capture) = at.and_then(|at| at.capture.as_mut()) {
                    capture.tail.extend(after);
                }
                Ok(())
            }
            (Some((graph, _)), Event::Captured { .. }) => {
                self.spoil(graph);
                let reason = "the event was recorded in another capture";
                Err(Refusal::new(CAPTURE_MERGE, reason))
            }
            (Some((graph, _)), Event::New | Event::At(_)) => {
                self.spoil(graph);
                let reason = "a captured stream waits for what was recorded outside the capture";
                Err(Refusal::new(CAPTURE_ISOLATION, reason))
            }
        }
    }

    /// Refuses a wait for a stream that is being captured, and spoils the capture.
    pub(crate) fn refuse_wait(&mut self, stream: Handle) -> Answer {
        let Some((graph, _)) = self.capture_of(stream) else {
            return Ok(());
        };
        self.spoil(graph);
        let reason = "nobody can wait for a stream that is being captured";
        Err(Refusal::new(CAPTURE_UNSUPPORTED, reason))
    }

    /// Refuses a wait for a context with a stream that is being captured.
    pub(crate) fn refuse_wait_for_all(&mut self, context: Handle) -> Answer {
        let streams: Vec<Handle> = self.of_context(context);
        streams.into_iter().try_for_each(|at| self.refuse_wait(at))
    }

    /// Refuses calls that CUDA calls potentially unsafe during captures.
    pub(crate) fn refuse_unsafe(&mut self) -> Answer {
        let me = thread();
        let mut refused = false;
        for recording in self.recordings.values_mut() {
            let forbids = match recording.mode {
                Mode::Global => true,
                Mode::ThreadLocal => recording.thread == me,
                Mode::Relaxed => false,
            };
            recording.invalid |= forbids;
            refused |= forbids;
        }
        if refused {
            let reason = "not while a stream is being captured: do it before";
            return Err(Refusal::new(CAPTURE_UNSUPPORTED, reason));
        }
        Ok(())
    }

    /// Returns true if the calling thread has begun a capture.
    pub(crate) fn captures(&self) -> bool {
        let me = thread();
        self.recordings.values().any(|at| at.thread == me)
    }

    /// The streams of a context.
    pub(crate) fn of_context(&self, context: Handle) -> Vec<Handle> {
        let streams = self.streams.iter();
        let streams = streams.filter(|(_, at)| at.context == context);
        streams.map(|(handle, _)| *handle).collect()
    }

    fn spoil(&mut self, graph: Handle) {
        if let Some(recording) = self.recordings.get_mut(&graph) {
            recording.invalid = true;
        }
    }
}

/// The refusal for calls with an event that was recorded in a capture.
pub(crate) fn captured_event() -> Refusal {
    let reason = "the event was last recorded in a stream that was being captured";
    Refusal::new(CAPTURED_EVENT, reason)
}
