//! Answers of the Responses API that are streamed. Each event has a name and a number.
//!
//! ```text
//! response.created, response.in_progress
//!   output_item.added
//!     content_part.added ─▶ output_text.delta, … ─▶ output_text.done ─▶ content_part.done
//!   output_item.done                                                        per item
//! response.completed, .incomplete or .failed
//! ```

use axum::response::Response;
use serde::Serialize;

use super::{
    events::{Data, Emit, Nowhere},
    item::Status,
    items::Items,
    object::{Answer, Outcome},
};
use crate::{
    error::{ApiError, ApiResult},
    generation::{Delta, Event, first, merge},
    http::{
        openai::usage::UsageMeter,
        sse::{self, Framer, Frames, KEEP_ALIVE},
    },
    submission::Submission,
};

/// Streams the only choice.
pub(super) async fn stream(
    answer: Answer,
    items: Items,
    submission: Submission,
) -> ApiResult<Response> {
    let framer = ResponseFramer {
        answer,
        items,
        meter: UsageMeter::new(&submission),
        sent: 0,
    };
    // The wait ends before a proxy could close the silent connection.
    let deltas = first(merge(submission.generations), KEEP_ALIVE).await?;
    Ok(sse::response(deltas, framer))
}

/// State of a streamed answer.
struct ResponseFramer {
    answer: Answer,
    items: Items,
    meter: UsageMeter,
    /// Number of events so far.
    sent: u64,
}

/// Data of an event.
#[derive(Serialize)]
struct Numbered<'a> {
    r#type: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    data: Data<'a>,
}

/// Receiver of events that numbers them.
struct Numbering<'a> {
    sent: &'a mut u64,
    frames: &'a mut Frames,
}

impl Emit for Numbering<'_> {
    fn emit(&mut self, name: &'static str, data: Data<'_>) {
        let numbered = Numbered {
            r#type: name,
            sequence_number: *self.sent,
            data,
        };
        self.frames.named(name, &numbered);
        *self.sent += 1;
    }
}

impl ResponseFramer {
    fn delta(&mut self, delta: Delta, frames: &mut Frames) -> ApiResult<()> {
        self.begin(frames);
        let Self {
            answer,
            items,
            meter,
            sent,
        } = self;
        let mut out = Numbering { sent, frames };
        for event in delta.events {
            let Event::End(end) = &event else {
                items.add(event, &mut out);
                continue;
            };
            let outcome = Outcome::of(end)?;
            meter.end(0, end);
            items.finish(Status::of(&outcome), &mut out);
            let name = match outcome {
                Outcome::Incomplete => "response.incomplete",
                _ => "response.completed",
            };
            let response = &answer.response(outcome, items.all(), Some(meter.totals()));
            out.emit(name, Data::Response { response });
        }
        Ok(())
    }

    /// Tells that the answer has begun, once.
    fn begin(&mut self, frames: &mut Frames) {
        if self.sent > 0 {
            return;
        }
        let sent = &mut self.sent;
        let mut out = Numbering { sent, frames };
        for name in ["response.created", "response.in_progress"] {
            let response = &self.answer.response(Outcome::InProgress, &[], None);
            out.emit(name, Data::Response { response });
        }
    }

    fn fail(&mut self, error: ApiError, frames: &mut Frames) {
        frames.failed(&error);
        self.begin(frames);
        let sent = &mut self.sent;
        let mut out = Numbering { sent, frames };
        out.emit("error", Data::error(&error));
        // What came remains, but its last item has no end.
        self.items.finish(Status::Incomplete, &mut Nowhere);
        let failed = Outcome::Failed(error);
        let response = &self.answer.response(failed, self.items.all(), None);
        out.emit("response.failed", Data::Response { response });
    }
}

impl Framer for ResponseFramer {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (_, delta): Self::Item, frames: &mut Frames) -> bool {
        match delta.and_then(|delta| self.delta(delta, frames)) {
            Ok(()) => true,
            Err(error) => {
                self.fail(error, frames);
                false
            }
        }
    }

    // The end of the choice has ended the answer.
    fn end(&mut self, _: &mut Frames) {}
}
