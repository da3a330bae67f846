//! The client of the scheduler: submits requests and receives their outputs over one
//! stream. Dropping a request's handle aborts the request.

mod adapters;
mod command;
mod handle;
mod link;
mod session;
mod status;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

pub use handle::RequestHandle;
use lockstep_adaptive::DepthRange;
use lockstep_ports::{Budget, Prepaid};
use lockstep_process::Outlook;
use lockstep_proto::pb::lockstep::{
    self as wire, CheckHealthRequest, FlushCacheRequest, FlushCacheResponse, FrontFigures,
    GetFiguresRequest, GetLoadRequest, GetLoadResponse, ListRequestsRequest, ListRequestsResponse,
    SetDepthRangeRequest, UpdateWeightsRequest, UpdateWeightsResponse, WeightsInUse,
    frontend_client::FrontendClient,
};
use lockstep_types::{
    TraceContext,
    drafter::{DrafterCommand, DrafterResult},
    request::{ErrorKind, Request, RequestError},
};
pub use status::LinkState;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use self::{
    command::{LinkCommand, LivePermit, Version},
    link::Link,
    status::SchedulerStatus,
};

/// Time limit of a unary call other than a health check.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The scheduler's address and this process's identity.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The scheduler's socket.
    pub socket: PathBuf,
    /// Hash of the configuration; the scheduler must have the same.
    pub config_hash: String,
    /// This process's name in the scheduler's log.
    pub name: String,
    /// Number of requests that may run and wait; the scheduler would refuse more.
    pub capacity: usize,
    /// Budget that outputs are charged to while they wait for their clients.
    pub budget: Arc<Budget>,
    /// Forecast of the time until there is a scheduler again, while there is none.
    pub outlook: Outlook,
}

/// Returns this process's own figures when any tokenizer-manager asks for all figures;
/// the argument is true if metrics are wanted.
pub type OwnFigures = Arc<dyn Fn(bool) -> FrontFigures + Send + Sync>;

/// A shared client of the scheduler.
#[derive(Debug)]
pub struct SchedulerClient {
    commands: mpsc::UnboundedSender<LinkCommand>,
    state: watch::Receiver<LinkState>,
    status: SchedulerStatus,
    outlook: Outlook,
    next: AtomicU64,
    live: Arc<AtomicUsize>,
    capacity: usize,
    budget: Arc<Budget>,
}

impl SchedulerClient {
    /// Returns a client, and the task that keeps it connected until `halt`.
    pub fn new(
        options: LinkOptions,
        own: OwnFigures,
        halt: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (state, watch) = watch::channel(LinkState::Connecting);
        let status = SchedulerStatus {
            weights: watch::Sender::new(None),
            healthy: watch::Sender::new(false),
        };
        let scheduler = Self {
            commands,
            state: watch,
            status: status.clone(),
            outlook: options.outlook.clone(),
            next: AtomicU64::new(1),
            live: Arc::default(),
            capacity: options.capacity,
            budget: options.budget.clone(),
        };
        let link = Link::new(options, inbox, state, status, own, halt);
        (scheduler, link.run())
    }

    /// Returns a receiver that is notified when the stream's state changes.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    /// Returns true if requests can be submitted now.
    pub fn is_ready(&self) -> bool {
        matches!(*self.state.borrow(), LinkState::Ready(_))
    }

    /// Returns true if [`Self::health`] would succeed, as far as is known without a step.
    pub fn is_healthy(&self) -> bool {
        self.is_ready() && *self.status.healthy.borrow()
    }

    /// Returns the seconds until requests are served again, if the launcher knows them.
    pub fn served_in(&self) -> Option<u32> {
        self.outlook.seconds()
    }

    /// Returns a receiver that is notified when the steps' part of [`Self::is_healthy`]
    /// changes. Changes of the stream's state are not notified here.
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.status.healthy.subscribe()
    }

    /// Number of requests that were submitted and have not finished.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns a new number for a client request with several choices.
    pub fn parent(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Submits one request. All choices of one client request have the same `parent`;
    /// it is `None` if the client request has one choice. Outputs of up to `paid` bytes
    /// may wait without being charged. A traced request continues in the span `trace`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] without a scheduler, [`ErrorKind::Overloaded`] beyond
    /// the number that the scheduler can run and queue.
    pub fn submit(
        &self,
        request: Request,
        parent: Option<u64>,
        paid: Prepaid,
        trace: Option<TraceContext>,
    ) -> Result<RequestHandle, RequestError> {
        if !self.is_ready() {
            return Err(self.disconnected());
        }
        let live = LivePermit::acquire(&self.live, self.capacity)?;
        // Request numbers are never reused, so an output that was under way when its
        // stream broke cannot reach another request.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, outputs) = lockstep_ports::outputs(&self.budget, paid);
        let weights = Version::default();
        let submit = LinkCommand::Submit {
            number,
            parent,
            request: Box::new(request),
            trace,
            outputs: sender,
            live,
            weights: weights.clone(),
        };
        self.commands
            .send(submit)
            .map_err(|_| self.disconnected())?;
        let commands = self.commands.clone();
        Ok(RequestHandle::new(number, outputs, commands, weights))
    }

    /// Aborts the requests that clients know by one of these ids, or all requests, at
    /// any frontend. Returns the number of aborted requests.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the scheduler does not answer in time.
    pub async fn abort(&self, trace_ids: Option<Vec<String>>) -> Result<usize, RequestError> {
        let (reply, count) = oneshot::channel();
        let command = LinkCommand::AbortTrace { trace_ids, reply };
        self.commands
            .send(command)
            .map_err(|_| self.disconnected())?;
        match tokio::time::timeout(CALL_TIMEOUT, count).await {
            Ok(Ok(count)) => Ok(count),
            Ok(Err(_)) | Err(_) => Err(self.disconnected()),
        }
    }

    /// Checks within `timeout` that a forward step runs on every rank.
    ///
    /// # Errors
    /// The reason, as a clause for a message, if no step runs.
    pub async fn health(&self, force_step: bool, timeout: Duration) -> Result<(), String> {
        let mut client = self.client().map_err(|error| error.message)?;
        let request = CheckHealthRequest {
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            force_step,
        };
        // The scheduler answers within the limit; the margin is for the transport.
        let call = tokio::time::timeout(
            timeout + Duration::from_millis(250),
            client.check_health(request),
        );
        match call.await {
            Ok(Ok(response)) => {
                let response = response.into_inner();
                if response.healthy {
                    self.status.set_healthy(true);
                    Ok(())
                } else {
                    // The scheduler reports this to all frontends, in order with changes.
                    Err(response.reason)
                }
            }
            Ok(Err(status)) => {
                self.status.set_healthy(false);
                Err(format!(
                    "the scheduler refused the check: {}",
                    status.message()
                ))
            }
            Err(_) => {
                self.status.set_healthy(false);
                Err(format!(
                    "the scheduler did not answer within {} s",
                    timeout.as_secs_f32()
                ))
            }
        }
    }

    /// Returns the scheduler's current counters.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the scheduler does not answer in time.
    pub async fn load(&self) -> Result<GetLoadResponse, RequestError> {
        let mut client = self.client()?;
        self.answer(client.get_load(GetLoadRequest {})).await
    }

    /// Lists requests that have not ended, of any frontend; at most `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the scheduler does not answer in time.
    pub async fn requests(&self, limit: u32) -> Result<ListRequestsResponse, RequestError> {
        let mut client = self.client()?;
        self.answer(client.list_requests(ListRequestsRequest { limit }))
            .await
    }

    /// Returns the figures of all tokenizer-managers that answer in time, with their
    /// metrics if `metrics` is true.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the scheduler does not answer in time.
    pub fn figures(
        &self,
        metrics: bool,
    ) -> impl Future<Output = Result<Vec<FrontFigures>, RequestError>> + Send + use<> {
        let (client, outlook) = (self.client(), self.outlook.clone());
        async move {
            let mut client = client?;
            let request = GetFiguresRequest { metrics };
            Ok(answer(client.get_figures(request), &outlook).await?.fronts)
        }
    }

    /// Empties the prefix cache.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the scheduler does not answer in time.
    pub async fn flush(&self) -> Result<FlushCacheResponse, RequestError> {
        let mut client = self.client()?;
        self.answer(client.flush_cache(FlushCacheRequest {})).await
    }

    /// Restricts the ranks' choice to these depths; `None` = any depth.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the scheduler does not answer in time.
    pub async fn set_depth_range(&self, range: Option<DepthRange>) -> Result<(), RequestError> {
        let mut client = self.client()?;
        let range = range.map(Into::into);
        self.answer(client.set_depth_range(SetDepthRangeRequest { range }))
            .await?;
        Ok(())
    }

    /// Returns the weights in use; `None` = the weights that the engine started with.
    pub fn weights(&self) -> Option<WeightsInUse> {
        self.status.weights.borrow().clone()
    }

    /// Replaces the weights. Waits until running requests have ended and the files are
    /// read. Dropping the future before the files are read cancels the update.
    ///
    /// # Errors
    /// The reason why the old weights stay, or [`ErrorKind::Unavailable`].
    pub async fn update_weights(
        &self,
        wanted: UpdateWeightsRequest,
    ) -> Result<UpdateWeightsResponse, RequestError> {
        let mut client = self.client()?;
        let answer = client.update_weights(wanted).await;
        let answer = answer.map_err(|_| self.disconnected())?.into_inner();
        match answer.error {
            Some(error) => Err(error.into()),
            None => Ok(answer),
        }
    }

    /// Sends a command to the drafter.
    ///
    /// # Errors
    /// The drafter's reason why nothing changed, [`ErrorKind::Overloaded`] while other
    /// commands wait, [`ErrorKind::Unavailable`] without a scheduler.
    pub async fn command_drafter(&self, command: DrafterCommand) -> DrafterResult {
        let mut client = self.client()?;
        let reply = client
            .command_drafter(wire::DrafterCommand::from(command))
            .await;
        reply.map_err(|_| self.disconnected())?.into_inner().into()
    }

    fn client(&self) -> Result<FrontendClient<Channel>, RequestError> {
        match &*self.state.borrow() {
            LinkState::Ready(client) => Ok(client.clone()),
            _ => Err(self.disconnected()),
        }
    }

    fn disconnected(&self) -> RequestError {
        disconnected(self.served_in())
    }

    /// Returns the answer to a call, if it comes in time.
    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, RequestError> {
        answer(call, &self.outlook).await
    }
}

async fn answer<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    outlook: &Outlook,
) -> Result<T, RequestError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(_)) | Err(_) => Err(disconnected(outlook.seconds())),
    }
}

/// Returns the error while there is no scheduler, with the seconds until there is one,
/// if known.
pub fn disconnected(retry_after_s: Option<u32>) -> RequestError {
    RequestError {
        retry_after_s,
        ..RequestError::new(
            ErrorKind::Unavailable,
            "The engine is not available at the moment: it is starting, restarting or shutting \
             down.",
        )
    }
}
