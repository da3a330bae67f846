//! The gRPC front: `lockstep.v1.Inference`, health and reflection.

mod convert;
mod generate;
mod info;

use std::{io, pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use lockstep_ports::{Health, RequestMemory};
use lockstep_proto::{
    limits::{PUBLIC_ANSWER_BYTES, PUBLIC_MESSAGE_BYTES},
    pb::{
        LOCKSTEP_DESCRIPTORS,
        lockstep::{
            AbortRequest, AbortResponse, DetokenizeRequest, DetokenizeResponse, GenerateRequest,
            GenerateResponse, GetModelInfoRequest, GetModelInfoResponse, GetServerInfoRequest,
            GetServerInfoResponse, TokenizeRequest, TokenizeResponse,
            inference_server::{Inference, InferenceServer},
        },
    },
};
use lockstep_traces::names;
use tokio::net::TcpListener;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, metadata::MetadataMap, service::InterceptorLayer};

use crate::{
    app::App, error::ApiError, gate::GateState, request_id::known_as, request_stats::RequestStats,
    request_trace::RequestTrace,
};

/// Full name of the service, by which health checks ask for it.
const SERVICE: &str = "lockstep.v1.Inference";

/// The public service.
struct InferenceService {
    app: Arc<App>,
}

/// Serves until `close`, then lets open calls end.
///
/// # Errors
/// Fails if the service's descriptors cannot be read.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    close: CancellationToken,
) -> io::Result<()> {
    let (health, routes) = Health::routes(SERVICE, LOCKSTEP_DESCRIPTORS).await?;
    let inference = InferenceServer::new(InferenceService { app: app.clone() })
        .max_decoding_message_size(PUBLIC_MESSAGE_BYTES)
        .max_encoding_message_size(PUBLIC_ANSWER_BYTES);
    let keys = app.keys.clone();
    let authorized = tower::ServiceBuilder::new()
        .layer(InterceptorLayer::new(move |request: Request<()>| {
            let shown = request.metadata().get("authorization");
            keys.check_client(shown.map(|value| value.as_bytes()))
                .map_err(ApiError::into_status)?;
            Ok(request)
        }))
        .service(inference);
    let routes = routes.add_service(authorized).prepare();
    let port = app.ports.grpc.clone();
    tokio::spawn(report_health(health, app, close.clone()));
    port.serve(listener, routes.into_axum_router(), close).await;
    Ok(())
}

/// Reports the service as serving while requests are admitted and steps run on every
/// rank.
async fn report_health(health: Health, app: Arc<App>, close: CancellationToken) {
    let period = Duration::from_secs(app.config.timeouts.health_s);
    let serves = || app.gate.state() == GateState::Open && app.scheduler.is_healthy();
    // The result of a check is visible in `is_healthy` afterwards.
    let check = || async { app.healthy(false).await.is_ok() };
    let gate = WatchStream::from_changes(app.gate.subscribe()).map(|_| ());
    let link = WatchStream::from_changes(app.scheduler.state()).map(|_| ());
    let steps = WatchStream::from_changes(app.scheduler.healthy()).map(|_| ());
    let changes = stream::select(stream::select(gate, link), steps);
    health.report(serves, changes, check, period, close).await;
}

impl InferenceService {
    /// Makes the statistics of a call that generates, and a trace if the call is
    /// sampled.
    fn stats(&self, metadata: &MetadataMap) -> Arc<RequestStats> {
        const METHOD: &str = "lockstep.v1.Inference/Generate";
        let stats = Arc::<RequestStats>::default();
        let header = |name: &str| metadata.get(name)?.to_str().ok();
        let traces = self.app.traces.as_ref();
        let trace = traces.and_then(|own| RequestTrace::begin(own, METHOD.to_owned(), header));
        if let Some(trace) = trace {
            trace.set(names::RPC_SYSTEM, "grpc");
            trace.set(names::RPC_METHOD, METHOD);
            stats.follow(trace);
        }
        stats
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = Answers;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Answers>, Status> {
        self.app.metrics.called("Generate");
        let held = request.extensions().get::<RequestMemory>().cloned();
        let stats = self.stats(request.metadata());
        let answers = generate::generate(&self.app, request.into_inner(), held.as_ref());
        let answers = Arc::clone(&stats).scope(answers).await;
        if let (Err(error), Some(trace)) = (&answers, stats.trace()) {
            trace.fail(error.code(), error.message.clone());
        }
        answers.map(Response::new).map_err(ApiError::into_status)
    }

    async fn abort(
        &self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        self.app.metrics.called("Abort");
        let shown = request.metadata().get("authorization");
        let shown = shown.map(|value| value.as_bytes());
        let keys = &self.app.keys;
        keys.check_operator(shown).map_err(ApiError::into_status)?;
        let id = request.into_inner().request_id;
        if id.is_empty() {
            return Err(ApiError::invalid("request_id", "'request_id' is missing.").into_status());
        }
        let ids = known_as("request_id", &id).map_err(ApiError::into_status)?;
        let aborted = self.app.scheduler.abort(Some(ids)).await;
        let found = aborted.map_err(|error| ApiError::from(error).into_status())? > 0;
        Ok(Response::new(AbortResponse { found }))
    }

    async fn tokenize(
        &self,
        request: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, Status> {
        self.app.metrics.called("Tokenize");
        info::tokenize(&self.app, request.into_inner())
            .await
            .map(Response::new)
            .map_err(ApiError::into_status)
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, Status> {
        self.app.metrics.called("Detokenize");
        info::detokenize(&self.app, request.into_inner())
            .await
            .map(Response::new)
            .map_err(ApiError::into_status)
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        self.app.metrics.called("GetModelInfo");
        Ok(Response::new(info::model(&self.app)))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        self.app.metrics.called("GetServerInfo");
        info::server(&self.app)
            .await
            .map(Response::new)
            .map_err(ApiError::into_status)
    }
}
