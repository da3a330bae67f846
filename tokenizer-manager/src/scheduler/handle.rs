//! One submitted request.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockstep_types::request::{ErrorKind, Finish, Output, RequestError, Usage};
use tokio::sync::mpsc;

use super::{disconnected, link::Command};

/// How long the scheduler gets to say what an aborted request had used.
const LAST_WORD: Duration = Duration::from_millis(250);

/// What the weights are called that serve a request, known with its first
/// output; `None` = those that the engine started with.
pub(super) type Version = Arc<OnceLock<Option<Arc<str>>>>;

/// The outputs of one request. Dropping it before the last output aborts the request.
///
/// Outputs wait in memory until they are taken: they are bounded by the
/// request's `max_new_tokens`, and a client that reads slowly delays nobody.
#[derive(Debug)]
pub struct RequestHandle {
    number: u64,
    outputs: mpsc::UnboundedReceiver<Output>,
    commands: mpsc::UnboundedSender<Command>,
    /// A failure that came right behind tokens: they are shown first.
    failure: Option<Output>,
    finished: bool,
    weights: Version,
}

impl RequestHandle {
    pub(super) fn new(
        number: u64,
        outputs: mpsc::UnboundedReceiver<Output>,
        commands: mpsc::UnboundedSender<Command>,
        weights: Version,
    ) -> Self {
        Self {
            number,
            outputs,
            commands,
            failure: None,
            finished: false,
            weights,
        }
    }

    /// The next output, with all that has come since joined to it. Not to be
    /// called after an output with `finish`. Cancel-safe.
    pub async fn next(&mut self) -> Output {
        let mut output = match self.failure.take() {
            Some(failure) => failure,
            None => self.outputs.recv().await.unwrap_or_else(lost),
        };
        while output.finish.is_none()
            && let Ok(more) = self.outputs.try_recv()
        {
            if more
                .finish
                .as_ref()
                .is_some_and(|finish| finish.outcome.is_err())
            {
                self.failure = Some(more);
                break;
            }
            append(&mut output, more);
        }
        self.finished = output.finish.is_some();
        output
    }

    /// What the weights are called that serve it, once an output came; `None` =
    /// those that the engine started with.
    pub fn weight_version(&self) -> Option<Arc<str>> {
        self.weights.get().cloned().flatten()
    }

    /// Ends the request early because its text is complete, and waits a moment
    /// for its end with its counts; `None` if they do not come.
    pub async fn stop(&mut self) -> Option<Finish> {
        if self.finished {
            return None;
        }
        self.finished = true;
        let stop = Command::Stop {
            number: self.number,
        };
        self.commands.send(stop).ok()?;
        let last = async {
            loop {
                if let Some(finish) = self.outputs.recv().await?.finish {
                    return finish.outcome.is_ok().then_some(finish);
                }
            }
        };
        tokio::time::timeout(LAST_WORD, last).await.ok().flatten()
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.finished {
            // Without a link there is nothing to abort.
            let _ = self.commands.send(Command::Abort {
                number: self.number,
            });
        } else {
            let _ = self.commands.send(Command::Forget {
                number: self.number,
            });
        }
    }
}

fn append(output: &mut Output, more: Output) {
    output.token_ids.extend(more.token_ids);
    output.logprobs.extend(more.logprobs);
    output.prompt_logprobs.extend(more.prompt_logprobs);
    output.finish = more.finish;
}

/// The link's task is gone without a last word.
fn lost() -> Output {
    Output {
        finish: Some(Finish {
            outcome: Err(disconnected()),
            matched_token: None,
            usage: Usage::default(),
            speculation: None,
        }),
        ..Output::default()
    }
}

/// One of the requests that may live at once, until the scheduler is done with
/// it: a client that is slow to take its output holds no place.
#[derive(Debug)]
pub(super) struct Live(Arc<AtomicUsize>);

impl Live {
    pub(super) fn enter(count: &Arc<AtomicUsize>, capacity: usize) -> Result<Self, RequestError> {
        let live = Self(Arc::clone(count));
        if live.0.fetch_add(1, Ordering::Relaxed) >= capacity {
            return Err(RequestError::new(
                ErrorKind::Overloaded,
                "Too many requests are running and waiting; try again later.",
            ));
        }
        Ok(live)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
