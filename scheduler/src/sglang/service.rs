//! The gRPC service: one method per rpc, each a few lines.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use lockstep_ports::{Budget, RequestMemory};
use lockstep_process::RoleContext;
use lockstep_proto::{
    limits::{PUBLIC_ANSWER_BYTES, PUBLIC_MESSAGE_BYTES},
    pb::{
        sglang::grpc::scheduler::{
            AbortRequest, AbortResponse, EmbedRequest, EmbedResponse, GenerateRequest,
            GetLoadsRequest, GetLoadsResponse, GetModelInfoRequest, GetModelInfoResponse,
            GetServerInfoRequest, GetServerInfoResponse, HealthCheckRequest, HealthCheckResponse,
            ListLoadedLoRaAdaptersRequest, ListLoadedLoRaAdaptersResponse, LoadLoRaAdapterRequest,
            LoadLoRaAdapterResponse, UnloadLoRaAdapterRequest, UnloadLoRaAdapterResponse,
            sglang_scheduler_server::{SglangScheduler, SglangSchedulerServer},
        },
        smg::grpc::common::{
            FlushCacheRequest, FlushCacheResponse, GetTokenizerChunk, GetTokenizerRequest,
            ProfileResponse, StartProfileRequest, StopProfileRequest, SubscribeKvEventsRequest,
        },
    },
};
use lockstep_types::TraceContext;
use tokio::sync::{OnceCell, Semaphore, mpsc};
use tonic::{Request, Response, Status, service::interceptor::InterceptedService};

use super::{
    adapters,
    calls::{Calls, Choices, Registration},
    constraints::{self, Constraints},
    convert::{Call, convert},
    events::{Batches, batches},
    generate::{Answers, Responses, aborted},
    info, loads, tokenizer,
    trace::CallTrace,
};
use crate::{
    bearer::RequireBearer,
    inbox::{Command, Commands},
    kv_events::EVENT_QUEUE,
    sinks::Sink,
};

/// Most subscribers to the cache's events at once. Subscribers are gateways. Each keeps the
/// whole contents of the caches, and the changes until it reads them.
const SUBSCRIBERS: usize = 16;

/// Implementation of the service.
pub struct Service {
    ctx: Arc<RoleContext>,
    commands: Commands,
    calls: Calls,
    constraints: Constraints,
    operators: RequireBearer,
    budget: Arc<Budget>,
    /// Places for readers of the cache's changes.
    subscribers: Arc<Semaphore>,
    /// Chunks of the tokenizer's archive, which is packed at the first request for it.
    tokenizer: OnceCell<Vec<GetTokenizerChunk>>,
}

/// The gRPC service behind the check of its key.
pub type Grpc = InterceptedService<SglangSchedulerServer<Service>, RequireBearer>;

impl Service {
    /// Makes the gRPC service with its limits set.
    pub fn grpc(ctx: Arc<RoleContext>, commands: Commands, budget: Arc<Budget>) -> Grpc {
        let clients = RequireBearer::client(&ctx.node);
        let service = Self {
            operators: RequireBearer::operator(&ctx.node),
            constraints: Constraints::new(&ctx.engine.model),
            ctx,
            commands,
            calls: Calls::default(),
            budget,
            subscribers: Arc::new(Semaphore::new(SUBSCRIBERS)),
            tokenizer: OnceCell::new(),
        };
        let server = SglangSchedulerServer::new(service)
            .max_decoding_message_size(PUBLIC_MESSAGE_BYTES)
            .max_encoding_message_size(PUBLIC_ANSWER_BYTES);
        InterceptedService::new(server, clients)
    }

    /// Converts a call, compiles its constraint and submits its choices. A call that is aborted
    /// meanwhile is answered as one that was aborted in the queue.
    async fn begin(
        &self,
        mut wire: GenerateRequest,
        held: Option<&RequestMemory>,
        trace: Option<&mut CallTrace>,
    ) -> Result<Answers, Status> {
        if wire.request_id.is_empty() {
            wire.request_id = format!("{:016x}", rand::random::<u64>());
        }
        let request_id = wire.request_id.clone();
        let room = held.map_or(usize::MAX, RequestMemory::most);
        constraints::translate(&mut wire).await?;
        let call = convert(wire, &self.ctx.engine, rand::random(), room)?;
        let model = &self.ctx.engine.server.served_model_name;
        let (mut span, mut place) = (None, None);
        if let Some(trace) = trace {
            place = Some(trace.asks(model, &request_id, &call));
            span = call.constraint().map(|_| trace.child("compile"));
        }
        let registration = self.calls.register(request_id, self.commands.clone())?;
        if let Some(constraint) = call.constraint() {
            tokio::select! {
                biased;
                () = registration.aborted() => return Ok(aborted(registration, &call)),
                checked = self.constraints.check(constraint, span) => checked?,
            }
        }
        self.submit(registration, &call, held, place).await
    }

    async fn submit(
        &self,
        mut registration: Registration,
        call: &Call,
        held: Option<&RequestMemory>,
        trace: Option<TraceContext>,
    ) -> Result<Answers, Status> {
        let rooms = vec![call.logprob_bytes; call.requests.len()];
        let reserves = held.map(|held| held.reserve(&rooms)).transpose()?;
        let reserves = reserves.unwrap_or_default();
        let (sender, outputs) = lockstep_ports::outputs(&self.budget, reserves.iter().collect());
        let sink = self
            .commands
            .ask(|reply| Command::Open {
                sink: Sink::Call(sender),
                reply,
            })
            .await?;
        let choices = call.requests.len() as u64;
        if !registration.submits((sink, choices)) {
            return Ok(aborted(registration, call));
        }
        // A call has a sink of its own, so any number can stand for its client request.
        let parent = (choices > 1).then_some(0);
        for (request, body) in (0..).zip(call.requests.iter().cloned()) {
            // A refused call fails before its stream begins. Gateways then ask another server,
            // which they can't after they have answered their own client.
            let admitted = self.commands.ask(|reply| Command::Submit {
                sink,
                request,
                parent,
                trace: trace.clone(),
                body: Ok(Box::new(body)),
                reply: Some(reply),
            });
            admitted.await?.map_err(lockstep_proto::status)?;
        }
        if registration.is_aborted() {
            // The abort may have come before a choice.
            self.abort_choices((sink, choices)).await?;
        }
        Ok(Responses::new(registration, outputs, call, reserves).boxed())
    }

    async fn abort_choices(&self, (sink, choices): Choices) -> Result<(), Status> {
        for request in 0..choices {
            let abort = Command::Abort { sink, request };
            self.commands.send(abort).await?;
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl SglangScheduler for Service {
    type GenerateStream = Answers;
    type GetTokenizerStream = Pin<Box<dyn Stream<Item = Result<GetTokenizerChunk, Status>> + Send>>;
    type SubscribeKvEventsStream = Batches;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let held = request.extensions().get::<RequestMemory>().cloned();
        let mut trace = CallTrace::begin(self.ctx.traces.as_ref(), request.metadata());
        let responses = self
            .begin(request.into_inner(), held.as_ref(), trace.as_mut())
            .await;
        if let (Err(status), Some(trace)) = (&responses, &mut trace) {
            trace.fail(status);
        }
        let responses = responses?;
        let stream = match trace {
            None => responses,
            Some(mut trace) => responses.inspect(move |said| trace.says(said)).boxed(),
        };
        Ok(Response::new(stream))
    }

    async fn abort(
        &self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        let request_id = request.into_inner().request_id;
        let found = self.calls.abort(&request_id);
        if let Some(Some(choices)) = found {
            self.abort_choices(choices).await?;
        }
        // An unknown call has ended or never came: either way it does not run, as the caller
        // wants.
        let message = if found.is_some() {
            "aborted"
        } else {
            "no such request"
        };
        Ok(Response::new(AbortResponse {
            success: found.is_some(),
            message: message.to_owned(),
        }))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let limit = Duration::from_secs(self.ctx.engine.timeouts.health_s);
        let health = self.commands.check_health(limit, false).await?;
        let (healthy, message) = match self.ctx.link.lifecycle().leave.is_cancelled() {
            true => (false, "the server is about to shut down".to_owned()),
            false => (health.healthy, health.reason),
        };
        Ok(Response::new(HealthCheckResponse { healthy, message }))
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        Ok(Response::new(info::model(&self.ctx)))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        let load = self.commands.ask(|reply| Command::Load { reply }).await?;
        Ok(Response::new(info::server(&self.ctx, &load)))
    }

    async fn get_loads(
        &self,
        request: Request<GetLoadsRequest>,
    ) -> Result<Response<GetLoadsResponse>, Status> {
        let request = request.into_inner();
        let load = self.commands.ask(|reply| Command::Load { reply }).await?;
        Ok(Response::new(loads::loads(&self.ctx, &load, &request)?))
    }

    async fn flush_cache(
        &self,
        request: Request<FlushCacheRequest>,
    ) -> Result<Response<FlushCacheResponse>, Status> {
        self.operators.check(request.metadata())?;
        let wait = waiting_time(request.into_inner().timeout_s);
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let flushed = self.commands.ask(|reply| Command::Flush { reply }).await?;
            if flushed.flushed || tokio::time::Instant::now() >= deadline {
                return Ok(Response::new(FlushCacheResponse {
                    success: flushed.flushed,
                    message: flushed.reason,
                }));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn get_tokenizer(
        &self,
        _: Request<GetTokenizerRequest>,
    ) -> Result<Response<Self::GetTokenizerStream>, Status> {
        let pack = || async {
            let folder = self.ctx.engine.model.path.clone();
            // Megabytes to compress: not on the thread that plans steps.
            tokio::task::spawn_blocking(move || tokenizer::chunks(&folder))
                .await
                .map_err(|_| Status::internal("packing the tokenizer failed"))?
        };
        let chunks = self.tokenizer.get_or_try_init(pack).await?.clone();
        Ok(Response::new(
            futures::stream::iter(chunks.into_iter().map(Ok)).boxed(),
        ))
    }

    async fn subscribe_kv_events(
        &self,
        _: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<Self::SubscribeKvEventsStream>, Status> {
        let place = self.subscribers.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            Status::resource_exhausted(format!(
                "the cache's events have {SUBSCRIBERS} subscribers already; try again when one has \
                 left"
            ))
        })?;
        let (reply, events) = mpsc::channel(EVENT_QUEUE);
        self.commands.send(Command::CacheEvents { reply }).await?;
        Ok(Response::new(batches(events, place)))
    }

    async fn embed(&self, _: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        Err(unsupported("embeddings"))
    }
    async fn start_profile(
        &self,
        _: Request<StartProfileRequest>,
    ) -> Result<Response<ProfileResponse>, Status> {
        Err(unsupported("profiling"))
    }
    async fn stop_profile(
        &self,
        _: Request<StopProfileRequest>,
    ) -> Result<Response<ProfileResponse>, Status> {
        Err(unsupported("profiling"))
    }
    async fn load_lo_ra_adapter(
        &self,
        request: Request<LoadLoRaAdapterRequest>,
    ) -> Result<Response<LoadLoRaAdapterResponse>, Status> {
        self.operators.check(request.metadata())?;
        let loaded = adapters::load(&self.commands, request.into_inner()).await;
        loaded.map(Response::new)
    }
    async fn unload_lo_ra_adapter(
        &self,
        request: Request<UnloadLoRaAdapterRequest>,
    ) -> Result<Response<UnloadLoRaAdapterResponse>, Status> {
        self.operators.check(request.metadata())?;
        let unloaded = adapters::unload(&self.commands, request.into_inner()).await;
        unloaded.map(Response::new)
    }
    async fn list_loaded_lo_ra_adapters(
        &self,
        request: Request<ListLoadedLoRaAdaptersRequest>,
    ) -> Result<Response<ListLoadedLoRaAdaptersResponse>, Status> {
        // Paths are for operators.
        self.operators.check(request.metadata())?;
        adapters::loaded(&self.commands).await.map(Response::new)
    }
}

/// Returns a caller's waiting time, at most ten minutes; any float may come.
fn waiting_time(seconds: f32) -> Duration {
    if seconds.is_nan() {
        return Duration::ZERO;
    }
    Duration::from_secs_f32(seconds.clamp(0.0, 600.0))
}

fn unsupported(what: &str) -> Status {
    Status::unimplemented(format!("{what} are not supported by this server"))
}
