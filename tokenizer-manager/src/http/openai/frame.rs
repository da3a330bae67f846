//! What both generating routes put around their choices.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use super::{
    params::Streaming,
    usage::{UsageBody, UsageMeter},
};
use crate::{
    engine::{Engine, now},
    error::ApiResult,
    generation::Delta,
    http::{
        json,
        sse::{Framer, Frames},
    },
};

/// What every object of one answer repeats.
pub(crate) struct Frame {
    pub engine: Arc<Engine>,
    id: String,
    created: u64,
    fingerprint: String,
}

#[derive(Serialize)]
struct Whole<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    usage: UsageBody,
    system_fingerprint: &'a str,
}

#[derive(Serialize)]
struct Chunk<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
}

impl Frame {
    pub(crate) fn new(engine: Arc<Engine>, id: String) -> Self {
        Self {
            fingerprint: engine.fingerprint(),
            engine,
            id,
            created: now(),
        }
    }

    /// A whole answer.
    pub(crate) fn whole<C: Serialize>(
        &self,
        object: &'static str,
        choices: &[C],
        usage: UsageBody,
    ) -> ApiResult<Response> {
        json(&Whole {
            id: &self.id,
            object,
            created: self.created,
            model: self.engine.model(),
            choices,
            usage,
            system_fingerprint: &self.fingerprint,
        })
    }
}

/// The chunks of a streamed answer.
pub(crate) struct Chunks {
    pub frame: Frame,
    pub object: &'static str,
    pub streaming: Streaming,
    pub meter: UsageMeter,
}

impl Chunks {
    /// A chunk with one choice.
    pub(crate) fn choice<C: Serialize>(&self, choice: C, frames: &mut Frames) {
        let usage = match self.streaming {
            Streaming {
                continuous: true, ..
            } => Some(Some(self.meter.body())),
            Streaming { usage: true, .. } => Some(None),
            Streaming { usage: false, .. } => None,
        };
        self.chunk(&[choice], usage, frames);
    }

    fn chunk<C: Serialize>(
        &self,
        choices: &[C],
        usage: Option<Option<UsageBody>>,
        frames: &mut Frames,
    ) {
        let frame = &self.frame;
        frames.event(&Chunk {
            id: &frame.id,
            object: self.object,
            created: frame.created,
            model: frame.engine.model(),
            system_fingerprint: &frame.fingerprint,
            choices,
            usage,
        });
    }
}

/// What a route makes of deltas.
pub(crate) trait Choices: Send + 'static {
    /// Adds the chunks of one delta of choice `index`.
    ///
    /// # Errors
    /// For an end that is an error to clients: it ends the stream.
    fn delta(
        &mut self,
        chunks: &mut Chunks,
        index: usize,
        delta: Delta,
        frames: &mut Frames,
    ) -> ApiResult<()>;
}

/// Frames of a route's chunks; at the end, if asked for, one with the counts.
pub(crate) struct ChunkFramer<C> {
    pub chunks: Chunks,
    pub choices: C,
}

impl<C: Choices> Framer for ChunkFramer<C> {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (index, delta): Self::Item, frames: &mut Frames) -> bool {
        let added =
            delta.and_then(|delta| self.choices.delta(&mut self.chunks, index, delta, frames));
        match added {
            Ok(()) => true,
            Err(error) => {
                frames.error(&error);
                false
            }
        }
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.chunks.streaming.usage {
            let usage = self.chunks.meter.body();
            self.chunks.chunk::<()>(&[], Some(Some(usage)), frames);
        }
        frames.done();
    }
}
