//! Limited waits for the description of a model, with a word to the waiting user.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::progress::{Event, EventSink};
use crate::retries::RequestContext;
use crate::{HubError, TransferLimits};

/// The time that the hub has for a model's list of files and its small files.
pub(crate) struct DescriptionDeadline {
    context: RequestContext,
    events: EventSink,
    limits: TransferLimits,
    since: Instant,
}

impl DescriptionDeadline {
    /// A wait that begins now.
    pub(crate) fn new(
        context: &RequestContext,
        events: &EventSink,
        limits: TransferLimits,
    ) -> Self {
        Self {
            context: context.clone(),
            events: events.clone(),
            limits,
            since: Instant::now(),
        }
    }

    /// Patience for one file among those that are waited for together. If another program
    /// holds a file's lock, this error must come before the time is over: the end of the
    /// time is blamed on the hub.
    pub(crate) fn for_a_file(&self) -> TransferLimits {
        TransferLimits {
            lock: self.limits.lock.min(self.left() / 2),
            ..self.limits
        }
    }

    fn left(&self) -> Duration {
        self.limits.described.saturating_sub(self.since.elapsed())
    }

    /// Waits for `work`, which loads `what`, for the time that is left.
    ///
    /// # Errors
    /// The errors of `work`; [`HubError::Slow`] when the time is over.
    pub(crate) async fn until_there<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, HubError>>,
    ) -> Result<T, HubError> {
        let begun = Instant::now();
        let end = sleep(self.left());
        tokio::pin!(work, end);
        let mut word = self.limits.word;
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep(word.saturating_sub(begun.elapsed())) => {
                    let seconds = begun.elapsed().as_secs();
                    let text = format!("Waiting for {what}, {seconds} s so far.");
                    (self.events)(Event::Note(&text));
                    word = word.saturating_mul(2);
                }
                () = &mut end => return Err(HubError::Slow {
                    name: self.context.name.clone(),
                    endpoint: self.context.endpoint.clone(),
                    what: what.to_owned(),
                    limit: self.limits.described,
                    set_by: self.limits.set_by,
                }),
            }
        }
    }
}
