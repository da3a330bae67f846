//! Answers of both generating routes, whole or streamed.

use axum::response::Response;
use futures::future::try_join_all;
use serde::Serialize;

use super::{
    envelope::{Chunks, Envelope},
    params::Streaming,
    usage::UsageMeter,
};
use crate::{
    app::App,
    error::ApiResult,
    generation::{Delta, Generation, first, merge},
    http::sse::{self, Framer, Frames, KEEP_ALIVE},
    submission::Submission,
};

/// A route's form of choices.
pub(crate) trait Form: Send + 'static {
    /// `object` of a whole answer.
    const WHOLE: &'static str;
    /// `object` of a chunk.
    const CHUNK: &'static str;
    /// Type of a choice in a whole answer.
    type Choice: Serialize;

    /// Returns choice `index` from all its output.
    ///
    /// # Errors
    /// Fails for a choice that was aborted.
    fn whole(&mut self, app: &App, index: usize, output: Delta) -> ApiResult<Self::Choice>;

    /// Adds the chunks of one delta of choice `index`.
    ///
    /// # Errors
    /// Fails for a choice that was aborted; the error ends the stream.
    fn chunks(
        &mut self,
        chunks: &mut Chunks,
        index: usize,
        delta: Delta,
        frames: &mut Frames,
    ) -> ApiResult<()>;
}

/// Answers with all choices of the submission. `streaming` is `None` for a whole answer.
///
/// # Errors
/// The first choice that fails ends the others. A stream fails only before its first
/// delta; an error after that is its last event.
pub(crate) async fn answer<F: Form>(
    envelope: Envelope,
    submission: Submission,
    streaming: Option<Streaming>,
    form: F,
) -> ApiResult<Response> {
    match streaming {
        Some(streaming) => stream(envelope, submission, streaming, form).await,
        None => whole(&envelope, submission, form).await,
    }
}

async fn whole<F: Form>(
    envelope: &Envelope,
    submission: Submission,
    mut form: F,
) -> ApiResult<Response> {
    let mut meter = UsageMeter::new(&submission);
    let generations = submission.generations.into_iter();
    let outputs = try_join_all(generations.map(Generation::complete)).await?;
    let mut choices = Vec::with_capacity(outputs.len());
    for (index, output) in outputs.into_iter().enumerate() {
        if let Some(end) = output.end() {
            meter.end(index, end);
        }
        choices.push(form.whole(&envelope.app, index, output)?);
    }
    envelope.whole(F::WHOLE, &choices, meter.body())
}

async fn stream<F: Form>(
    envelope: Envelope,
    submission: Submission,
    streaming: Streaming,
    form: F,
) -> ApiResult<Response> {
    let chunks = Chunks {
        envelope,
        object: F::CHUNK,
        streaming,
        meter: UsageMeter::new(&submission),
    };
    // The wait ends before a proxy could close the silent connection.
    let deltas = first(merge(submission.generations), KEEP_ALIVE).await?;
    Ok(sse::response(deltas, ChunkFramer { chunks, form }))
}

/// Frames of a route's chunks; if requested, a last chunk has the token counts.
struct ChunkFramer<F> {
    chunks: Chunks,
    form: F,
}

impl<F: Form> Framer for ChunkFramer<F> {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (index, delta): Self::Item, frames: &mut Frames) -> bool {
        let added =
            delta.and_then(|delta| self.form.chunks(&mut self.chunks, index, delta, frames));
        match added {
            Ok(()) => true,
            Err(error) => {
                frames.error(&error);
                false
            }
        }
    }

    fn end(&mut self, frames: &mut Frames) {
        self.chunks.end(frames);
        frames.done();
    }
}
