//! The scheduler as the tokenizer-manager sees it: submit a request, get its
//! outputs; dropping the handle aborts the request.

mod handle;
mod link;
mod session;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

pub use handle::RequestHandle;
use lockstep_proto::pb::lockstep::{
    CheckHealthRequest, CorporaEdit, CorpusSize, FlushCacheRequest, FlushCacheResponse,
    GetLoadRequest, GetLoadResponse, UpdateWeightsRequest, UpdateWeightsResponse, WeightsInUse,
    frontend_client::FrontendClient,
};
use lockstep_types::request::{ErrorKind, Request, RequestError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use self::link::{Command, Link};

/// How long a unary call other than a health check may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the scheduler is and who calls.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The scheduler's socket.
    pub socket: PathBuf,
    /// Hash of the configuration; the scheduler must have the same.
    pub config_hash: String,
    /// This process's name in the scheduler's log.
    pub name: String,
    /// Requests that may live at once: what the scheduler can run and queue.
    /// More would certainly be refused there.
    pub capacity: usize,
}

/// State of the stream to the scheduler.
#[derive(Debug, Clone)]
pub enum LinkState {
    /// No scheduler yet, or the stream ended; trying again.
    Connecting,
    /// Requests flow.
    Ready(FrontendClient<Channel>),
    /// The scheduler has another configuration. Nothing can mend that.
    Incompatible(String),
    /// Shut down.
    Closed,
}

/// A shared client of the scheduler.
#[derive(Debug)]
pub struct Scheduler {
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<LinkState>,
    weights: watch::Receiver<Option<WeightsInUse>>,
    next: AtomicU64,
    live: Arc<AtomicUsize>,
    capacity: usize,
}

impl Scheduler {
    /// A client and the task that keeps it connected until `halt`.
    pub fn new(
        options: LinkOptions,
        halt: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (state, watch) = watch::channel(LinkState::Connecting);
        let (in_use, weights) = watch::channel(None);
        let scheduler = Self {
            commands,
            state: watch,
            weights,
            next: AtomicU64::new(1),
            live: Arc::default(),
            capacity: options.capacity,
        };
        let link = Link::new(options, inbox, state, in_use, halt);
        (scheduler, link.run())
    }

    /// Follows the state of the stream.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    /// Whether requests can be submitted now.
    pub fn is_ready(&self) -> bool {
        matches!(*self.state.borrow(), LinkState::Ready(_))
    }

    /// Requests that the scheduler works on.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Submits one request.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] without a scheduler, [`ErrorKind::Overloaded`]
    /// beyond what the scheduler could run and queue.
    pub fn submit(&self, request: Request) -> Result<RequestHandle, RequestError> {
        if !self.is_ready() {
            return Err(disconnected());
        }
        let live = handle::Live::enter(&self.live, self.capacity)?;
        // Request numbers are never reused, so an output that was under way
        // when its stream broke cannot reach another request.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, outputs) = mpsc::unbounded_channel();
        let weights = handle::Version::default();
        let submit = Command::Submit {
            number,
            request: Box::new(request),
            outputs: sender,
            live,
            weights: weights.clone(),
        };
        self.commands.send(submit).map_err(|_| disconnected())?;
        let commands = self.commands.clone();
        Ok(RequestHandle::new(number, outputs, commands, weights))
    }

    /// Aborts the requests with this client-visible id, or all; returns how many.
    pub async fn abort(&self, trace_id: Option<String>) -> usize {
        let (reply, count) = oneshot::channel();
        let command = Command::AbortTrace { trace_id, reply };
        if self.commands.send(command).is_err() {
            return 0;
        }
        count.await.unwrap_or(0)
    }

    /// Healthy, or why not, within `timeout`.
    ///
    /// # Errors
    /// Why a step did not run, in words.
    pub async fn health(&self, force_step: bool, timeout: Duration) -> Result<(), String> {
        let mut client = self.client().map_err(|error| error.message)?;
        let request = CheckHealthRequest {
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            force_step,
        };
        // The scheduler answers within the limit; the margin is for the way.
        let call = tokio::time::timeout(
            timeout + Duration::from_millis(250),
            client.check_health(request),
        );
        match call.await {
            Ok(Ok(response)) => {
                let response = response.into_inner();
                if response.healthy {
                    Ok(())
                } else {
                    Err(response.reason)
                }
            }
            Ok(Err(status)) => Err(format!(
                "the scheduler refused the check: {}",
                status.message()
            )),
            Err(_) => Err(format!(
                "the scheduler did not answer within {} s",
                timeout.as_secs_f32()
            )),
        }
    }

    /// Current counters of the scheduler.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] without an answer.
    pub async fn load(&self) -> Result<GetLoadResponse, RequestError> {
        let mut client = self.client()?;
        answer(client.get_load(GetLoadRequest {})).await
    }

    /// Empties the prefix cache.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] without an answer.
    pub async fn flush(&self) -> Result<FlushCacheResponse, RequestError> {
        let mut client = self.client()?;
        answer(client.flush_cache(FlushCacheRequest {})).await
    }

    /// Which weights compute; `None` = those that the engine started with.
    pub fn weights(&self) -> Option<WeightsInUse> {
        self.weights.borrow().clone()
    }

    /// Computes with other weights from now on. Takes as long as running
    /// requests and the reading take; dropping the future before the reading
    /// gives the update up.
    ///
    /// # Errors
    /// Why the weights stay as they were.
    pub async fn update_weights(
        &self,
        wanted: UpdateWeightsRequest,
    ) -> Result<UpdateWeightsResponse, RequestError> {
        let mut client = self.client()?;
        let answer = client.update_weights(wanted).await;
        let answer = answer.map_err(|_| disconnected())?.into_inner();
        match answer.error {
            Some(error) => Err(error.into()),
            None => Ok(answer),
        }
    }

    /// Changes the texts that are drafted from; gives all there are then.
    ///
    /// # Errors
    /// Why nothing changed.
    pub async fn edit_corpora(&self, edit: CorporaEdit) -> Result<Vec<CorpusSize>, RequestError> {
        let mut client = self.client()?;
        let answer = client.edit_corpora(edit).await;
        let answer = answer.map_err(|_| disconnected())?.into_inner();
        match answer.error {
            Some(error) => Err(error.into()),
            None => Ok(answer.corpora),
        }
    }

    fn client(&self) -> Result<FrontendClient<Channel>, RequestError> {
        match &*self.state.borrow() {
            LinkState::Ready(client) => Ok(client.clone()),
            _ => Err(disconnected()),
        }
    }
}

async fn answer<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, RequestError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(_)) | Err(_) => Err(disconnected()),
    }
}

/// What requests get while there is no scheduler.
pub fn disconnected() -> RequestError {
    RequestError::new(
        ErrorKind::Unavailable,
        "The engine is not available at the moment: it is starting, restarting or shutting down.",
    )
}
