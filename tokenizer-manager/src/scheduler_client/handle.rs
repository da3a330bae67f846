//! The handle of one submitted request.

use std::{sync::Arc, time::Duration};

use lockstep_ports::{OutputReceiver, SlowClient};
use lockstep_types::request::{ErrorKind, Finish, Output, RequestError, Usage};
use tokio::sync::mpsc;

use super::{
    command::{LinkCommand, Version},
    disconnected,
};

/// Time limit for the final counts of a stopped request.
const FINISH_TIMEOUT: Duration = Duration::from_millis(250);

/// Receiver of one request's outputs. Dropping it before the last output aborts the
/// request.
///
/// Outputs wait in memory until they are taken, so a client that reads slowly delays
/// nobody. The bytes are charged to the budget. If the budget is spent, the request is
/// given up.
#[derive(Debug)]
pub struct RequestHandle {
    number: u64,
    outputs: OutputReceiver<Output>,
    commands: mpsc::UnboundedSender<LinkCommand>,
    /// A failure that arrived together with tokens. The tokens are returned first.
    failure: Option<Output>,
    finished: bool,
    weights: Version,
}

impl RequestHandle {
    pub(super) fn new(
        number: u64,
        outputs: OutputReceiver<Output>,
        commands: mpsc::UnboundedSender<LinkCommand>,
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

    /// Returns the next output, joined with all further outputs that have arrived. Must
    /// not be called after an output with `finish`. Cancel-safe.
    pub async fn next(&mut self) -> Output {
        let mut output = match self.failure.take() {
            Some(failure) => failure,
            None => match self.outputs.recv().await {
                Some(output) => output.unwrap_or_else(given_up),
                None => failed(disconnected(None)),
            },
        };
        while output.finish.is_none()
            && let Some(more) = self.outputs.try_recv()
        {
            let more = more.unwrap_or_else(given_up);
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

    /// Returns the version of the weights that serve the request, once an output
    /// arrived; `None` = the weights that the engine started with.
    pub fn weight_version(&self) -> Option<Arc<str>> {
        self.weights.get().cloned().flatten()
    }

    /// Ends the request early because its text is complete, and waits briefly for its
    /// final counts. `None` if the counts do not arrive.
    pub async fn stop(&mut self) -> Option<Finish> {
        if self.finished {
            return None;
        }
        self.finished = true;
        let stop = LinkCommand::Stop {
            number: self.number,
        };
        self.commands.send(stop).ok()?;
        let last = async {
            loop {
                if let Some(finish) = self.outputs.recv().await?.ok()?.finish {
                    return finish.outcome.is_ok().then_some(finish);
                }
            }
        };
        tokio::time::timeout(FINISH_TIMEOUT, last)
            .await
            .ok()
            .flatten()
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.finished {
            // Without a link there is nothing to abort.
            let _ = self.commands.send(LinkCommand::Abort {
                number: self.number,
            });
        } else {
            let _ = self.commands.send(LinkCommand::Forget {
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
    output.dp_rank = more.dp_rank;
}

fn given_up(given_up: SlowClient) -> Output {
    failed(RequestError::new(
        ErrorKind::Overloaded,
        given_up.to_string(),
    ))
}

/// Returns the last output of a request that failed.
pub(super) fn failed(error: RequestError) -> Output {
    Output {
        finish: Some(Finish {
            outcome: Err(error),
            matched_token: None,
            usage: Usage::default(),
            speculation: None,
        }),
        ..Output::default()
    }
}

#[cfg(test)]
mod tests {
    use lockstep_ports::{Budget, Prepaid, outputs};
    use lockstep_types::{request::FinishReason, sampling::TokenLogprob};

    use super::*;

    fn described(token_id: u32) -> TokenLogprob {
        TokenLogprob {
            token_id,
            ..TokenLogprob::default()
        }
    }

    #[tokio::test]
    async fn outputs_that_wait_are_joined_up_to_an_error() {
        let budget = Budget::new(1 << 20);
        let last = |outcome| Output {
            token_ids: vec![3],
            finish: Some(Finish {
                outcome,
                matched_token: None,
                usage: Usage::default(),
                speculation: None,
            }),
            ..Output::default()
        };
        for fails in [false, true] {
            let (mut sender, receiver) = outputs(&budget, Prepaid::default());
            let (commands, _inbox) = mpsc::unbounded_channel();
            let mut handle = RequestHandle::new(1, receiver, commands, Version::default());
            for token in [1, 2] {
                let output = Output {
                    token_ids: vec![token],
                    logprobs: vec![described(token)],
                    prompt_logprobs: vec![described(10 + token)],
                    ..Output::default()
                };
                sender.send(output, 1).expect("there is room");
            }
            let end = match fails {
                true => failed(disconnected(None)),
                false => last(Ok(FinishReason::Stop)),
            };
            sender.send(end, 1).expect("there is room");
            let output = handle.next().await;
            let of = |all: &[TokenLogprob]| all.iter().map(|one| one.token_id).collect::<Vec<_>>();
            assert_eq!(of(&output.logprobs), [1, 2]);
            assert_eq!(of(&output.prompt_logprobs), [11, 12]);
            if fails {
                assert_eq!((output.token_ids, output.finish), (vec![1, 2], None));
                let finish = handle.next().await.finish.expect("the last");
                assert!(finish.outcome.is_err());
            } else {
                assert_eq!(output.token_ids, [1, 2, 3]);
                assert!(output.finish.expect("the last").outcome.is_ok());
            }
        }
    }
}
