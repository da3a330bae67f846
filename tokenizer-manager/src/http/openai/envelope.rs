//! The JSON objects around the choices of both generating routes.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use super::{
    AskedModel,
    params::Streaming,
    usage::{UsageBody, UsageMeter},
};
use crate::{
    app::{App, now},
    error::ApiResult,
    http::{json, sse::Frames},
};

/// The fields that every object of one answer repeats.
pub(crate) struct Envelope {
    pub app: Arc<App>,
    id: String,
    model: AskedModel,
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

impl Envelope {
    pub(in crate::http) fn new(app: Arc<App>, id: String, model: AskedModel) -> Self {
        Self {
            fingerprint: app.fingerprint(),
            app,
            id,
            model,
            created: now(),
        }
    }

    /// Returns a whole answer.
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
            model: self.model.name(&self.app),
            choices,
            usage,
            system_fingerprint: &self.fingerprint,
        })
    }
}

/// State of the chunks of a streamed answer.
pub(crate) struct Chunks {
    pub envelope: Envelope,
    pub object: &'static str,
    pub streaming: Streaming,
    pub meter: UsageMeter,
}

impl Chunks {
    /// Adds a chunk with one choice.
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

    /// Adds the last chunk, which has the token counts, if they were requested.
    pub(crate) fn end(&self, frames: &mut Frames) {
        if self.streaming.usage {
            self.chunk::<()>(&[], Some(Some(self.meter.body())), frames);
        }
    }

    fn chunk<C: Serialize>(
        &self,
        choices: &[C],
        usage: Option<Option<UsageBody>>,
        frames: &mut Frames,
    ) {
        let envelope = &self.envelope;
        frames.event(&Chunk {
            id: &envelope.id,
            object: self.object,
            created: envelope.created,
            model: envelope.model.name(&envelope.app),
            system_fingerprint: &envelope.fingerprint,
            choices,
            usage,
        });
    }
}
