//! Limited waits for the description of a model, with a word to the waiting user.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::progress::{Event, Told};
use crate::tries::Asked;
use crate::{HubError, Patience};

/// The time that the hub has for a model's list of files and its small files.
pub(crate) struct Waiting {
    asked: Asked,
    told: Told,
    patience: Patience,
    since: Instant,
}

impl Waiting {
    /// A wait that begins now.
    pub(crate) fn new(asked: &Asked, told: &Told, patience: Patience) -> Self {
        Self {
            asked: asked.clone(),
            told: told.clone(),
            patience,
            since: Instant::now(),
        }
    }

    /// Patience for one file among those that are waited for together. If another program
    /// holds a file's lock, this error must come before the time is over: the end of the
    /// time is blamed on the hub.
    pub(crate) fn for_a_file(&self) -> Patience {
        Patience {
            lock: self.patience.lock.min(self.left() / 2),
            ..self.patience
        }
    }

    fn left(&self) -> Duration {
        self.patience.described.saturating_sub(self.since.elapsed())
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
        let mut word = self.patience.word;
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep(word.saturating_sub(begun.elapsed())) => {
                    let seconds = begun.elapsed().as_secs();
                    let text = format!("Waiting for {what}, {seconds} s so far.");
                    (self.told)(Event::Note(&text));
                    word = word.saturating_mul(2);
                }
                () = &mut end => return Err(HubError::Slow {
                    name: self.asked.name.clone(),
                    endpoint: self.asked.endpoint.clone(),
                    what: what.to_owned(),
                    limit: self.patience.described,
                    set_by: self.patience.set_by,
                }),
            }
        }
    }
}
