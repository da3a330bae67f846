//! One life of the stream: commands out, events in, no lock between them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use lockstep_proto::pb::lockstep::{
    Abort, FrontendEvent, FrontendMessage, Stop, WeightsInUse, frontend_message::Kind,
};
use lockstep_types::request::{ErrorKind, Finish, FinishReason, Output, RequestError, Usage};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    disconnected,
    handle::{Live, Version},
    link::{Command, Connection},
};

/// How long a halt waits for events that are on their way.
const LAST_WORDS: Duration = Duration::from_millis(100);

struct Entry {
    trace_id: String,
    outputs: mpsc::UnboundedSender<Output>,
    live: Live,
    weights: Version,
}

struct Session {
    // Looked up by number only; its order decides nothing.
    live: HashMap<u64, Entry>,
    outbound: mpsc::Sender<FrontendMessage>,
    /// Aborts and stops that found `outbound` full. No request is taken before
    /// they are sent, so that there are never more than live requests.
    owed: VecDeque<Kind>,
    weights: watch::Sender<Option<WeightsInUse>>,
    /// What they are called, unless they are those of the start.
    version: Option<Arc<str>>,
}

/// Carries requests until the stream ends or `halt`. Then `left` runs, so that
/// new requests are refused at once, and every live request ends with an error.
pub(super) async fn serve(
    connection: Connection,
    inbox: &mut mpsc::UnboundedReceiver<Command>,
    halt: &CancellationToken,
    weights: watch::Sender<Option<WeightsInUse>>,
    left: impl FnOnce(),
) {
    let Connection {
        outbound,
        mut inbound,
        weights: in_use,
        ..
    } = connection;
    let version = in_use
        .as_ref()
        .map(|weights| weights.version.as_str().into());
    weights.send_replace(in_use);
    let mut session = Session {
        live: HashMap::new(),
        outbound: outbound.clone(),
        owed: VecDeque::new(),
        weights,
        version,
    };
    let reason = loop {
        tokio::select! {
            () = halt.cancelled() => {
                session.hear_out(&mut inbound).await;
                break "The server is shutting down.";
            }
            event = inbound.message() => match event {
                Ok(Some(event)) => session.deliver(event),
                Ok(None) => {
                    tracing::warn!("the scheduler ended the stream");
                    break "The engine stopped while this request was running.";
                }
                Err(status) => {
                    tracing::warn!(%status, "the stream to the scheduler broke");
                    break "The engine stopped while this request was running.";
                }
            },
            Ok(place) = outbound.reserve(), if !session.owed.is_empty() => {
                if let Some(kind) = session.owed.pop_front() {
                    place.send(FrontendMessage { kind: Some(kind) });
                }
            }
            Some(command) = inbox.recv() => session.obey(command),
        }
    };
    left();
    for (_, entry) in session.live.drain() {
        let _ = entry
            .outputs
            .send(failed(RequestError::new(ErrorKind::Unavailable, reason)));
    }
}

/// The answer to a command while there is no stream.
pub(super) fn refuse(command: Command) {
    match command {
        Command::Submit { outputs, .. } => {
            let _ = outputs.send(failed(disconnected()));
        }
        Command::AbortTrace { reply, .. } => {
            let _ = reply.send(0);
        }
        Command::Abort { .. } | Command::Stop { .. } | Command::Forget { .. } => {}
    }
}

impl Session {
    /// Takes what the scheduler said before it ended: where it fails, the halt
    /// and the reason for it arrive at about the same time, and clients are
    /// owed the reason.
    async fn hear_out(&mut self, inbound: &mut tonic::Streaming<FrontendEvent>) {
        let rest = async {
            while let Ok(Some(event)) = inbound.message().await {
                self.deliver(event);
            }
        };
        // Silence is the usual case: a scheduler that goes on is not waited for.
        let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    }

    fn deliver(&mut self, event: FrontendEvent) {
        if let Some(weights) = event.weights {
            self.version = Some(weights.version.as_str().into());
            self.weights.send_replace(Some(weights));
        }
        for output in event.outputs {
            let number = output.request;
            let output = Output::try_from(output).unwrap_or_else(|error| {
                tracing::error!(%error, number, "the scheduler sent a faulty output");
                failed(RequestError::new(
                    ErrorKind::Internal,
                    "The engine sent a faulty output.",
                ))
            });
            if let Some(entry) = self.live.get(&number) {
                // All of a request's outputs are of the same weights.
                entry.weights.get_or_init(|| self.version.clone());
            }
            // A receiver that is gone has sent its abort already.
            if output.finish.is_none() {
                if let Some(entry) = self.live.get(&number) {
                    let _ = entry.outputs.send(output);
                }
            } else if let Some(entry) = self.live.remove(&number) {
                // Its place is free before anybody can know that it ended.
                drop(entry.live);
                let _ = entry.outputs.send(output);
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit {
                number,
                request,
                outputs,
                live,
                weights,
            } => {
                let Some(place) = self.place() else {
                    drop(live);
                    let _ = outputs.send(failed(behind()));
                    return;
                };
                let entry = Entry {
                    trace_id: request.trace_id.clone(),
                    outputs,
                    live,
                    weights,
                };
                place.send(FrontendMessage {
                    kind: Some(Kind::Submit(lockstep_proto::submit(*request, number))),
                });
                self.live.insert(number, entry);
            }
            Command::Abort { number } => {
                if self.live.remove(&number).is_some() {
                    self.send(Kind::Abort(Abort { request: number }));
                }
            }
            Command::Stop { number } => {
                if self.live.contains_key(&number) {
                    self.send(Kind::Stop(Stop { request: number }));
                }
            }
            Command::Forget { number } => {
                self.live.remove(&number);
            }
            Command::AbortTrace { trace_id, reply } => {
                // A caller that left does not want the count.
                let _ = reply.send(self.abort_trace(trace_id.as_deref()));
            }
        }
    }

    fn abort_trace(&mut self, trace_id: Option<&str>) -> usize {
        let wanted = |entry: &Entry| trace_id.is_none_or(|wanted| entry.trace_id == wanted);
        let mut numbers: Vec<u64> = self
            .live
            .iter()
            .filter(|(_, entry)| wanted(entry))
            .map(|(number, _)| *number)
            .collect();
        numbers.sort_unstable();
        for number in &numbers {
            self.send(Kind::Abort(Abort { request: *number }));
            if let Some(entry) = self.live.remove(number) {
                let _ = entry.outputs.send(Output {
                    finish: Some(Finish {
                        outcome: Ok(FinishReason::Abort),
                        matched_token: None,
                        usage: Usage::default(),
                        speculation: None,
                    }),
                    ..Output::default()
                });
            }
        }
        numbers.len()
    }

    /// Room for a request; `None` while the scheduler takes nothing.
    fn place(&self) -> Option<mpsc::Permit<'_, FrontendMessage>> {
        match self.owed.is_empty() {
            true => self.outbound.try_reserve().ok(),
            false => None,
        }
    }

    /// Sends what must not get lost.
    fn send(&mut self, kind: Kind) {
        // A stream that has ended is noticed on its other half.
        match self.outbound.try_reserve() {
            Ok(place) if self.owed.is_empty() => place.send(FrontendMessage { kind: Some(kind) }),
            _ => self.owed.push_back(kind),
        }
    }
}

/// What requests get while the scheduler takes no more.
fn behind() -> RequestError {
    RequestError::new(
        ErrorKind::Unavailable,
        "The engine is behind with taking requests; try again later.",
    )
}

fn failed(error: RequestError) -> Output {
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
    use lockstep_types::{
        request::Request,
        sampling::{LogprobParams, SamplingParams},
    };

    use super::*;

    fn submit(session: &mut Session, number: u64) -> mpsc::UnboundedReceiver<Output> {
        let (outputs, received) = mpsc::unbounded_channel();
        let request = Request {
            trace_id: "test".to_owned(),
            input_ids: vec![1],
            sampling: SamplingParams::greedy(),
            logprobs: LogprobParams::default(),
            max_new_tokens: 1,
            priority: 0,
            timeout_ms: None,
            max_draft_steps: None,
        };
        session.obey(Command::Submit {
            number,
            request: Box::new(request),
            outputs,
            live: Live::enter(&Arc::default(), 1).expect("a place"),
            weights: Version::default(),
        });
        received
    }

    fn refused(outputs: &mut mpsc::UnboundedReceiver<Output>) -> bool {
        let finish = outputs.try_recv().ok().and_then(|output| output.finish);
        finish.is_some_and(|finish| {
            finish
                .outcome
                .is_err_and(|error| error.kind == ErrorKind::Unavailable)
        })
    }

    #[test]
    fn a_scheduler_that_takes_nothing_fills_no_memory() {
        let (outbound, mut messages) = mpsc::channel(2);
        let mut session = Session {
            live: HashMap::new(),
            outbound,
            owed: VecDeque::new(),
            weights: watch::Sender::new(None),
            version: None,
        };
        let mut outputs: Vec<_> = (0..4).map(|number| submit(&mut session, number)).collect();
        let refusals: Vec<bool> = outputs.iter_mut().map(refused).collect();
        assert_eq!(refusals, [false, false, true, true]);
        session.obey(Command::Abort { number: 0 });
        session.obey(Command::Stop { number: 1 });
        assert_eq!(session.owed.len(), 2);
        assert!(messages.try_recv().is_ok(), "room for one");
        assert!(
            refused(&mut submit(&mut session, 4)),
            "what is owed goes first"
        );
    }
}
