//! One life of the stream: commands out, events in, no lock between them.

use std::collections::HashMap;

use lockstep_proto::{
    pb::lockstep::{Abort, FrontendEvent, FrontendMessage, frontend_message::Kind},
    request::{ErrorKind, Finish, FinishReason, Output, RequestError, Usage},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    disconnected,
    handle::Live,
    link::{Command, Connection},
};

struct Entry {
    trace_id: String,
    outputs: mpsc::UnboundedSender<Output>,
    live: Live,
}

struct Session {
    // Looked up by number only; its order decides nothing.
    live: HashMap<u64, Entry>,
    outbound: mpsc::UnboundedSender<FrontendMessage>,
}

/// Carries requests until the stream ends or `halt`. Then `left` runs, so that
/// new requests are refused at once, and every live request ends with an error.
pub(super) async fn serve(
    connection: Connection,
    inbox: &mut mpsc::UnboundedReceiver<Command>,
    halt: &CancellationToken,
    left: impl FnOnce(),
) {
    let Connection {
        outbound,
        mut inbound,
        ..
    } = connection;
    let mut session = Session {
        live: HashMap::new(),
        outbound,
    };
    let reason = loop {
        tokio::select! {
            () = halt.cancelled() => break "The server is shutting down.",
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
    fn deliver(&mut self, event: FrontendEvent) {
        for output in event.outputs {
            let number = output.request;
            let output = Output::try_from(output).unwrap_or_else(|error| {
                tracing::error!(%error, number, "the scheduler sent a faulty output");
                failed(RequestError::new(
                    ErrorKind::Internal,
                    "The engine sent a faulty output.",
                ))
            });
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
            } => {
                let entry = Entry {
                    trace_id: request.trace_id.clone(),
                    outputs,
                    live,
                };
                self.live.insert(number, entry);
                self.send(Kind::Submit(request.into_submit(number)));
            }
            Command::Abort { number } => {
                if self.live.remove(&number).is_some() {
                    self.send(Kind::Abort(Abort { request: number }));
                }
            }
            Command::Stop { number } => {
                if self.live.contains_key(&number) {
                    self.send(Kind::Abort(Abort { request: number }));
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
                    }),
                    ..Output::default()
                });
            }
        }
        numbers.len()
    }

    fn send(&self, kind: Kind) {
        // The stream's end is noticed on its other half.
        let _ = self.outbound.send(FrontendMessage { kind: Some(kind) });
    }
}

fn failed(error: RequestError) -> Output {
    Output {
        finish: Some(Finish {
            outcome: Err(error),
            matched_token: None,
            usage: Usage::default(),
        }),
        ..Output::default()
    }
}
