//! What the engine loop takes: what clients and operators want, and what
//! workers say. Both come through one queue, so that the loop takes them in the
//! order in which they were said; each side has an inlet of its own type.

use std::time::{Duration, Instant};

use lockstep_adaptive::DepthRange;
use lockstep_proto::pb::lockstep::{
    CheckHealthResponse, DrafterCommand, DrafterReply, FlushCacheResponse, FrontFigures,
    GetLoadResponse, ListRequestsResponse, UpdateWeightsRequest, UpdateWeightsResponse,
    WeightsReloaded, WorkerHello, WorkerReady,
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

/// Events that may wait for the engine loop.
const QUEUE: usize = 1024;

/// One event of the engine loop.
pub enum Event {
    /// From a frontend or the public service.
    Client(Command),
    /// From a worker's stream.
    Worker {
        /// Whose it is.
        rank: usize,
        /// What it says.
        event: WorkerEvent,
    },
}

/// What clients and operators want.
pub enum Command {
    /// A receiver of outputs appeared; the answer is its number.
    Open {
        sink: Sink,
        reply: oneshot::Sender<SinkId>,
    },
    /// It went away: its requests are aborted.
    Close { sink: SinkId },
    /// A request; a refusal reaches the sink as its last output.
    Submit {
        sink: SinkId,
        request: u64,
        /// The sink's number of the client request that it is one of several
        /// choices of.
        parent: Option<u64>,
        /// The span that it goes on in, where it is traced.
        trace: Option<TraceContext>,
        body: Result<Request, RequestError>,
        /// Whether it was admitted, for who can still refuse it in another way.
        reply: Option<oneshot::Sender<Result<(), RequestError>>>,
    },
    /// Its client does not want it any more.
    Abort { sink: SinkId, request: u64 },
    /// Requests of any sink are not wanted any more; the answer is an event of
    /// the sink that asks.
    AbortTrace {
        sink: SinkId,
        query: u64,
        /// The ids that clients know them by; `None` = all requests.
        trace_ids: Option<Vec<String>>,
    },
    /// Its client has all it wants of it.
    Stop { sink: SinkId, request: u64 },
    /// Answer once a step ran on every rank.
    Health {
        force_step: bool,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Who asked that at this time has waited for too long.
    HealthLate { asked: Instant },
    /// Current counters.
    Load {
        reply: oneshot::Sender<GetLoadResponse>,
    },
    /// Requests that have not ended, at most so many of them.
    ListRequests {
        limit: usize,
        reply: oneshot::Sender<ListRequestsResponse>,
    },
    /// Ask all frontends what they know of themselves; the answers come one by one.
    AskFigures {
        /// With their metrics.
        metrics: bool,
        reply: oneshot::Sender<mpsc::Receiver<FrontFigures>>,
    },
    /// What one of them knows.
    Figures { query: u64, figures: FrontFigures },
    /// Empty the prefix cache.
    Flush {
        reply: oneshot::Sender<FlushCacheResponse>,
    },
    /// Draft as deep as this alone from now on; the answer is that plans say so.
    SetDepthRange {
        range: DepthRange,
        reply: oneshot::Sender<()>,
    },
    /// Compute with other weights; the answer comes when all ranks have them.
    UpdateWeights {
        wanted: UpdateWeightsRequest,
        reply: oneshot::Sender<UpdateWeightsResponse>,
    },
    /// A command to the drafters, one on each DP rank's lead.
    Drafter {
        command: DrafterCommand,
        reply: oneshot::Sender<DrafterReply>,
    },
    /// Send changes of the prefix caches from now on.
    CacheEvents { reply: mpsc::Sender<CacheChanges> },
}

/// What a worker says.
pub enum WorkerEvent {
    /// It wants in; the answer says why not.
    Hello {
        hello: WorkerHello,
        link: WorkerLink,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// It loaded its weights and connected its collectives.
    Ready(WorkerReady),
    /// It finished a step.
    Result(RankResult),
    /// It looked at other weights, or has them.
    Reloaded(WeightsReloaded),
    /// A drafter's answer to the oldest command that it has not answered.
    Drafter(DrafterReply),
    /// Its node was told to stop.
    Leaving,
    /// Its stream ended.
    Gone(Gone),
}

/// Why a worker's stream ended.
pub struct Gone {
    /// For people.
    pub reason: String,
    /// Its rank, or another, was found to differ.
    pub diverged: bool,
}

impl Gone {
    /// Not for a difference between ranks.
    pub fn because(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            diverged: false,
        }
    }
}

/// The loop's end of the queue. Bounded: a flood of requests waits in its own
/// connections' flow control instead of in the scheduler's memory.
pub type Inbox = mpsc::Receiver<Event>;

/// The queue, with an inlet for clients and one for workers.
pub fn inbox() -> (Commands, WorkerEvents, Inbox) {
    let (sender, inbox) = mpsc::channel(QUEUE);
    (Commands(sender.clone()), WorkerEvents(sender), inbox)
}

/// Where services put what clients want.
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

    /// Closes a sink from where nobody can wait; its requests are aborted.
    pub fn close(&self, sink: SinkId) {
        self.put(Command::Close { sink });
    }

    /// Hands over a command that nobody waits for.
    fn put(&self, command: Command) {
        let event = Event::Client(command);
        if let Err(mpsc::error::TrySendError::Full(event)) = self.0.try_send(event) {
            // The queue is full for a moment.
            let sender = self.0.clone();
            tokio::spawn(async move {
                // Nobody listens any more when the engine has ended.
                let _ = sender.send(event).await;
            });
        }
    }

    /// Hands a command to the engine and waits for its answer.
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

    /// Answers whether a step ran on every rank, within `timeout`. That none did is told
    /// to all who go by what is known.
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

/// Where the gateway puts what workers say.
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

    /// Asks the engine to take a worker in.
    ///
    /// # Errors
    /// FAILED_PRECONDITION says why this worker can't be part of the group;
    /// UNAVAILABLE when the engine has ended.
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
