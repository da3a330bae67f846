//! One connection to the scheduler. A single task sends commands and receives events,
//! without a lock.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use lockstep_ports::OutputSender;
use lockstep_process::Outlook;
use lockstep_proto::pb::lockstep::{
    Abort, AbortTrace, FiguresAnswer, FiguresWanted, FrontendEvent, FrontendMessage, Stop, Submit,
    WeightsInUse, frontend_client::FrontendClient, frontend_message::Kind,
};
use lockstep_types::request::{ErrorKind, Output, RequestError};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::{Streaming, transport::Channel};

use super::{
    OwnFigures, SchedulerStatus,
    command::{LinkCommand, LivePermit, Version},
    disconnected,
    handle::failed,
};

/// Time for which a halt waits for events already on their way.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of aborts by id that await an answer. The scheduler answers them
/// between two steps.
const QUERIES: usize = 1024;

/// An open stream, after the welcome.
pub(super) struct Connection {
    pub client: FrontendClient<Channel>,
    pub outbound: mpsc::Sender<FrontendMessage>,
    pub inbound: Streaming<FrontendEvent>,
    /// The weights in use; `None` = the weights of the start.
    pub weights: Option<WeightsInUse>,
    /// True if steps run on every rank, as far as is known.
    pub healthy: bool,
}

struct LiveRequest {
    outputs: OutputSender<Output>,
    live: LivePermit,
    weights: Version,
}

struct Session {
    // Looked up by number only, so its order affects nothing.
    live: HashMap<u64, LiveRequest>,
    outbound: mpsc::Sender<FrontendMessage>,
    /// Commands that found `outbound` full. Aborts and stops never outnumber live
    /// requests, since no request is accepted before they are sent. Aborts by id are at
    /// most [`QUERIES`].
    unsent: VecDeque<Kind>,
    /// Callers of aborts by id, which wait for the number of ended requests. Each stays
    /// until the scheduler answers; dropping one tells the caller that no answer comes.
    queries: HashMap<u64, oneshot::Sender<usize>>,
    next_query: u64,
    status: SchedulerStatus,
    /// Version of the weights in use; `None` = the weights of the start.
    version: Option<Arc<str>>,
    own: OwnFigures,
}

/// Serves requests until the stream ends or `halt`. Then it runs `on_end`, so that new
/// requests are refused at once, and ends every live request with an error.
pub(super) async fn serve(
    connection: Connection,
    inbox: &mut mpsc::UnboundedReceiver<LinkCommand>,
    halt: &CancellationToken,
    (status, outlook): (SchedulerStatus, &Outlook),
    own: OwnFigures,
    on_end: impl FnOnce(),
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
    status.weights.send_replace(in_use);
    let mut session = Session {
        live: HashMap::new(),
        outbound: outbound.clone(),
        unsent: VecDeque::new(),
        queries: HashMap::new(),
        next_query: 0,
        status,
        version,
        own,
    };
    let reason = loop {
        tokio::select! {
            () = halt.cancelled() => {
                session.drain(&mut inbound).await;
                break "The server is shutting down.";
            }
            event = inbound.message() => match event {
                Ok(Some(event)) => session.dispatch(event),
                Ok(None) => {
                    tracing::warn!("the scheduler ended the stream");
                    break "The engine stopped while this request was running.";
                }
                Err(status) => {
                    tracing::warn!(%status, "the stream to the scheduler broke");
                    break "The engine stopped while this request was running.";
                }
            },
            Ok(permit) = outbound.reserve(), if !session.unsent.is_empty() => {
                if let Some(kind) = session.unsent.pop_front() {
                    permit.send(FrontendMessage { kind: Some(kind) });
                }
            }
            Some(command) = inbox.recv() => session.handle(command),
        }
    };
    on_end();
    for (_, entry) in session.live.drain() {
        let error = RequestError::new(ErrorKind::Unavailable, reason);
        let retry_after_s = outlook.seconds();
        fail(
            entry.outputs,
            RequestError {
                retry_after_s,
                ..error
            },
        );
    }
}

/// Refuses a command while there is no stream.
pub(super) fn refuse(command: LinkCommand, outlook: &Outlook) {
    match command {
        LinkCommand::Submit { outputs, .. } => fail(outputs, disconnected(outlook.seconds())),
        // The caller of an abort by id sees its reply dropped.
        LinkCommand::AbortTrace { .. }
        | LinkCommand::Abort { .. }
        | LinkCommand::Stop { .. }
        | LinkCommand::Forget { .. } => {}
    }
}

impl Session {
    /// Handles the events that the scheduler sent before it ended. If the scheduler
    /// fails, the halt and the reason arrive at about the same time, and clients should
    /// get the reason.
    async fn drain(&mut self, inbound: &mut Streaming<FrontendEvent>) {
        let rest = async {
            while let Ok(Some(event)) = inbound.message().await {
                self.dispatch(event);
            }
        };
        // Usually nothing arrives: the halt does not wait for a scheduler that keeps
        // running.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
    }

    fn dispatch(&mut self, event: FrontendEvent) {
        if let Some(weights) = event.weights {
            self.version = Some(weights.version.as_str().into());
            self.status.weights.send_replace(Some(weights));
        }
        if let Some(healthy) = event.healthy {
            self.status.set_healthy(healthy);
        }
        if let Some(done) = event.trace_aborted
            && let Some(reply) = self.queries.remove(&done.query)
        {
            // The send may fail: a caller that is gone needs no count.
            let _ = reply.send(done.requests as usize);
        }
        if let Some(wanted) = event.figures_wanted {
            self.tell_figures(wanted);
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
            self.hand_over(number, output);
        }
    }

    fn hand_over(&mut self, number: u64, output: Output) {
        // A handle that was dropped has sent its abort already.
        let Some(entry) = self.live.get_mut(&number) else {
            return;
        };
        // All outputs of a request come from the same weights.
        entry.weights.get_or_init(|| self.version.clone());
        let bytes = output.bytes();
        if output.finish.is_none() {
            if entry.outputs.send(output, bytes).is_err() {
                tracing::debug!(number, "its client takes the answer too slowly");
                self.abort(number);
            }
        } else if let Some(mut entry) = self.live.remove(&number) {
            // The permit is free before anybody can know that the request ended.
            drop(entry.live);
            // If the budget is spent, the handle learns it from the channel.
            let _ = entry.outputs.send(output, bytes);
        }
    }

    /// Forgets a request and tells the scheduler to end it.
    fn abort(&mut self, number: u64) {
        if self.live.remove(&number).is_some() {
            self.send(Kind::Abort(Abort { request: number }));
        }
    }

    /// Sends this process's own figures from a task of its own, since rendering metrics
    /// takes a while and outputs must not wait.
    fn tell_figures(&self, FiguresWanted { query, metrics }: FiguresWanted) {
        let (own, outbound) = (self.own.clone(), self.outbound.clone());
        tokio::spawn(async move {
            let answer = FiguresAnswer {
                query,
                figures: Some(own(metrics)),
            };
            // Without a stream nobody waits for the figures.
            let _ = outbound
                .send(FrontendMessage {
                    kind: Some(Kind::Figures(answer)),
                })
                .await;
        });
    }

    fn handle(&mut self, command: LinkCommand) {
        match command {
            LinkCommand::Submit {
                number,
                parent,
                request,
                trace,
                outputs,
                live,
                weights,
            } => {
                let Some(permit) = self.reserve() else {
                    drop(live);
                    fail(outputs, behind());
                    return;
                };
                let entry = LiveRequest {
                    outputs,
                    live,
                    weights,
                };
                let submit = Submit {
                    trace: trace.map(Into::into),
                    ..lockstep_proto::submit(*request, number, parent)
                };
                permit.send(FrontendMessage {
                    kind: Some(Kind::Submit(submit)),
                });
                self.live.insert(number, entry);
            }
            LinkCommand::Abort { number } => self.abort(number),
            LinkCommand::Stop { number } => {
                if self.live.contains_key(&number) {
                    self.send(Kind::Stop(Stop { request: number }));
                }
            }
            LinkCommand::Forget { number } => {
                self.live.remove(&number);
            }
            LinkCommand::AbortTrace { trace_ids, reply } => {
                if self.queries.len() >= QUERIES {
                    return;
                }
                let query = self.next_query;
                self.next_query += 1;
                self.queries.insert(query, reply);
                self.send(Kind::AbortTrace(AbortTrace {
                    query,
                    all: trace_ids.is_none(),
                    trace_ids: trace_ids.unwrap_or_default(),
                }));
            }
        }
    }

    /// Reserves room for a new request in the outbound queue; `None` while the queue is
    /// full.
    fn reserve(&self) -> Option<mpsc::Permit<'_, FrontendMessage>> {
        match self.unsent.is_empty() {
            true => self.outbound.try_reserve().ok(),
            false => None,
        }
    }

    /// Sends now or, if the queue is full, as soon as it has room.
    fn send(&mut self, kind: Kind) {
        // A stream that has ended shows on its inbound half.
        match self.outbound.try_reserve() {
            Ok(permit) if self.unsent.is_empty() => {
                permit.send(FrontendMessage { kind: Some(kind) });
            }
            _ => self.unsent.push_back(kind),
        }
    }
}

/// Returns the error for a full outbound queue.
fn behind() -> RequestError {
    RequestError::new(
        ErrorKind::Unavailable,
        "The engine is behind with taking requests; try again later.",
    )
}

/// Ends a request with an error, which takes no budget.
fn fail(mut outputs: OutputSender<Output>, error: RequestError) {
    // A request that was given up has its reason already.
    let _ = outputs.send(failed(error), 0);
}

#[cfg(test)]
mod tests;
