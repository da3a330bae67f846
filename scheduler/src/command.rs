//! What the gRPC services ask of the engine loop.

use lockstep_planner::CacheEvent;
use lockstep_proto::pb::lockstep::{
    CorporaEdit, CorporaEdited, FlushCacheResponse, GetLoadResponse, UpdateWeightsRequest,
    UpdateWeightsResponse, WeightsReloaded, WorkerHello, WorkerReady,
};
use lockstep_types::{
    request::{Request, RequestError},
    step::StepResult,
};
use tokio::sync::{mpsc, oneshot};

use crate::{sinks::Sink, workers::WorkerLink};

/// Number of a connected frontend or of the public gRPC service.
pub type SinkId = u32;

/// One event of the engine loop.
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
        body: Result<Request, RequestError>,
    },
    /// Its client does not want it any more.
    Abort { sink: SinkId, request: u64 },
    /// Its client has all it wants of it.
    Stop { sink: SinkId, request: u64 },
    /// A worker wants in; the answer says why not.
    WorkerHello {
        hello: WorkerHello,
        link: WorkerLink,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// A worker loaded its weights and connected its collectives.
    WorkerReady { rank: usize, ready: WorkerReady },
    /// A worker finished a step.
    WorkerResult { rank: usize, result: StepResult },
    /// A worker's node was told to stop.
    WorkerLeaving {
        /// Its rank.
        rank: usize,
    },
    /// A worker's stream ended.
    WorkerGone { rank: usize, reason: String },
    /// Answer once a step ran on every rank.
    Health {
        force_step: bool,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Current counters.
    Load {
        reply: oneshot::Sender<GetLoadResponse>,
    },
    /// Empty the prefix cache.
    Flush {
        reply: oneshot::Sender<FlushCacheResponse>,
    },
    /// Compute with other weights; the answer comes when all ranks have them.
    UpdateWeights {
        wanted: UpdateWeightsRequest,
        reply: oneshot::Sender<UpdateWeightsResponse>,
    },
    /// A worker looked at other weights, or has them.
    WorkerReloaded {
        rank: usize,
        reloaded: WeightsReloaded,
    },
    /// Change the texts that rank 0 drafts from.
    EditCorpora {
        edit: CorporaEdit,
        reply: oneshot::Sender<CorporaEdited>,
    },
    /// Rank 0 did.
    WorkerCorpora { edited: CorporaEdited },
    /// Send changes of the prefix cache from now on.
    CacheEvents {
        reply: mpsc::Sender<Vec<CacheEvent>>,
    },
}

/// Where services send commands. Bounded: a flood of requests waits in its own
/// connections' flow control instead of in the scheduler's memory.
pub type Commands = mpsc::Sender<Command>;

/// Commands that may wait for the engine loop.
pub const COMMAND_QUEUE: usize = 1024;
