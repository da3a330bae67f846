//! Events of the engine loop: commands of clients and operators, and messages of workers. All
//! come through one queue, so the loop handles them in the order in which they were sent. Each
//! side has a sender of its own type.

use std::time::{Duration, Instant};

use lockstep_adaptive::DepthRange;
use lockstep_proto::pb::lockstep::{
    AdapterList, AdapterRead, AdapterReply, CheckHealthResponse, DrafterCommand, DrafterReply,
    FlushCacheResponse, FrontFigures, GetLoadResponse, ListRequestsResponse, LoadAdapterRequest,
    UpdateWeightsRequest, UpdateWeightsResponse, WeightsReloaded, WorkerHello, WorkerReady,
};
use lockstep_types::{
    TraceContext,
    request::{Request, RequestError},
    step::RankResult,
};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::{
    kv_events::CacheChanges,
    sinks::{Sink, SinkId},
    worker_link::WorkerLink,
};

/// Most events that wait for the engine loop.
const QUEUE: usize = 1024;

/// One event of the engine loop.
pub enum Event {
    /// A command from a frontend or the public service.
    Client(Command),
    /// A message from a worker's stream.
    Worker {
        /// Rank of the worker.
        rank: usize,
        /// The worker's message.
        event: WorkerEvent,
    },
}

/// A command of a client or an operator.
pub enum Command {
    /// Adds a receiver of outputs; the answer is its number.
    Open {
        sink: Sink,
        reply: oneshot::Sender<SinkId>,
    },
    /// Removes a receiver that went away; its requests are aborted.
    Close { sink: SinkId },
    /// Submits a request; a refusal reaches the sink as the request's last output.
    Submit {
        sink: SinkId,
        request: u64,
        /// The sink's number of the client request, if this is one of its several choices.
        parent: Option<u64>,
        /// Place in a trace, if the request is traced.
        trace: Option<TraceContext>,
        body: Result<Box<Request>, RequestError>,
        /// Sender of the decision about admission, for a caller that can still refuse in
        /// another way.
        reply: Option<oneshot::Sender<Result<(), RequestError>>>,
    },
    /// Aborts a request that its client does not want any more.
    Abort { sink: SinkId, request: u64 },
    /// Aborts requests of any sink; the answer is an event of the asking sink.
    AbortTrace {
        sink: SinkId,
        query: u64,
        /// Ids by which clients know the requests; `None` = all requests.
        trace_ids: Option<Vec<String>>,
    },
    /// Stops a request whose client needs no more of it.
    Stop { sink: SinkId, request: u64 },
    /// Answers when a step has run on every rank.
    Health {
        force_step: bool,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Says that a caller who asked for health at this time has waited too long.
    HealthLate { asked: Instant },
    /// Asks for the current counters.
    Load {
        reply: oneshot::Sender<GetLoadResponse>,
    },
    /// Asks for the requests that have not ended, at most `limit`.
    ListRequests {
        limit: usize,
        reply: oneshot::Sender<ListRequestsResponse>,
    },
    /// Asks all frontends for their figures; the answers come one by one.
    AskFigures {
        /// True to ask for metrics too.
        metrics: bool,
        reply: oneshot::Sender<mpsc::Receiver<FrontFigures>>,
    },
    /// Figures of one frontend.
    Figures { query: u64, figures: FrontFigures },
    /// Empties the prefix cache.
    Flush {
        reply: oneshot::Sender<FlushCacheResponse>,
    },
    /// Sets the depths that may be drafted from now on; the answer comes when plans say so.
    SetDepthRange {
        range: DepthRange,
        reply: oneshot::Sender<()>,
    },
    /// Exchanges the weights; the answer comes when all ranks have the new ones.
    UpdateWeights {
        wanted: UpdateWeightsRequest,
        reply: oneshot::Sender<UpdateWeightsResponse>,
    },
    /// Loads, unloads or lists adapters.
    Adapters(AdapterCommand),
    /// Sends a command to the drafters, one on each DP rank's lead.
    Drafter {
        command: DrafterCommand,
        reply: oneshot::Sender<DrafterReply>,
    },
    /// Subscribes to changes of the prefix caches.
    CacheEvents { reply: mpsc::Sender<CacheChanges> },
}

/// A command about adapters.
pub enum AdapterCommand {
    /// Loads one; the answer comes when all ranks have it.
    Load {
        wanted: LoadAdapterRequest,
        reply: oneshot::Sender<AdapterReply>,
    },
    /// Takes the name of one away.
    Unload {
        name: String,
        reply: oneshot::Sender<AdapterReply>,
    },
    /// Asks for those that requests may name.
    List { reply: oneshot::Sender<AdapterList> },
}

/// A message of a worker.
pub enum WorkerEvent {
    /// The worker wants to join; the answer is the reason if it can't.
    Hello {
        hello: WorkerHello,
        link: WorkerLink,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// The worker loaded its weights and connected its collectives.
    Ready(WorkerReady),
    /// The worker finished a step.
    Result(RankResult),
    /// The worker looked at new weights, or has them.
    Reloaded(WeightsReloaded),
    /// The worker read an adapter.
    Adapter(AdapterRead),
    /// A drafter's answer to the oldest command that it has not answered.
    Drafter(DrafterReply),
    /// The worker's node was told to stop.
    Leaving,
    /// The worker's stream ended.
    StreamEnd(StreamEnd),
}

/// Reason of the end of a worker's stream.
pub struct StreamEnd {
    /// The reason, for people.
    pub reason: String,
    /// True if its rank, or another, was found to differ.
    pub diverged: bool,
}

impl StreamEnd {
    /// Makes a reason other than a difference between ranks.
    pub fn because(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            diverged: false,
        }
    }
}

/// Receiver of the queue, for the loop. The queue is bounded: a flood of requests waits in its
/// own connections' flow control instead of in the scheduler's memory.
pub type Inbox = mpsc::Receiver<Event>;

/// Makes the queue, with a sender for clients and one for workers.
pub fn inbox() -> (Commands, WorkerEvents, Inbox) {
    let (sender, inbox) = mpsc::channel(QUEUE);
    (Commands(sender.clone()), WorkerEvents(sender), inbox)
}

/// Sender of commands, for services.
#[derive(Clone)]
pub struct Commands(mpsc::Sender<Event>);

impl Commands {
    /// Hands a command to the engine.
    ///
    /// # Errors
    /// UNAVAILABLE when the engine has ended.
    pub async fn send(&self, command: Command) -> Result<(), Status> {
        let sent = self.0.send(Event::Client(command)).await;
        sent.map_err(|_| stopping())
    }

    /// Closes a sink, for callers that can't wait; its requests are aborted.
    pub fn close(&self, sink: SinkId) {
        self.put(Command::Close { sink });
    }

    /// Hands over a command without waiting.
    fn put(&self, command: Command) {
        let event = Event::Client(command);
        if let Err(mpsc::error::TrySendError::Full(event)) = self.0.try_send(event) {
            // The queue is full for a moment.
            let sender = self.0.clone();
            tokio::spawn(async move {
                // The engine may have ended.
                let _ = sender.send(event).await;
            });
        }
    }

    /// Hands a command to the engine and waits for the answer.
    ///
    /// # Errors
    /// UNAVAILABLE when the engine has ended.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await?;
        answer.await.map_err(|_| stopping())
    }

    /// Asks if a step runs on every rank within `timeout`. If none does, all parts that rely on
    /// the last known health are told.
    ///
    /// # Errors
    /// UNAVAILABLE when the engine has ended.
    pub async fn check_health(
        &self,
        timeout: Duration,
        force_step: bool,
    ) -> Result<CheckHealthResponse, Status> {
        let asked = Instant::now();
        let check = self.ask(|reply| Command::Health { force_step, reply });
        let unhealthy = |reason| CheckHealthResponse {
            healthy: false,
            reason,
        };
        Ok(match tokio::time::timeout(timeout, check).await {
            Ok(outcome) => match outcome? {
                Ok(()) => CheckHealthResponse {
                    healthy: true,
                    reason: String::new(),
                },
                Err(reason) => unhealthy(reason),
            },
            Err(_) => {
                self.put(Command::HealthLate { asked });
                unhealthy(format!(
                    "no step ran on every rank within {} ms",
                    timeout.as_millis()
                ))
            }
        })
    }
}

/// Sender of workers' events, for the gateway.
#[derive(Clone)]
pub struct WorkerEvents(mpsc::Sender<Event>);

impl WorkerEvents {
    /// Hands a worker's event to the engine.
    ///
    /// # Errors
    /// UNAVAILABLE when the engine has ended.
    pub async fn send(&self, rank: usize, event: WorkerEvent) -> Result<(), Status> {
        let sent = self.0.send(Event::Worker { rank, event }).await;
        sent.map_err(|_| stopping())
    }

    /// Asks the engine to add a worker to the group.
    ///
    /// # Errors
    /// FAILED_PRECONDITION with the reason if this worker can't be part of the group;
    /// UNAVAILABLE if the engine has ended.
    pub async fn attach(
        &self,
        rank: usize,
        hello: WorkerHello,
        link: WorkerLink,
    ) -> Result<(), Status> {
        let (reply, answer) = oneshot::channel();
        let hello = WorkerEvent::Hello { hello, link, reply };
        self.send(rank, hello).await?;
        let attached = answer.await.map_err(|_| stopping())?;
        attached.map_err(Status::failed_precondition)
    }
}

fn stopping() -> Status {
    Status::unavailable("the scheduler is stopping")
}
