//! The gRPC front: `lockstep.v1.Inference`, health and reflection.

mod convert;
mod generate;
mod info;

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::Stream;
use lockstep_proto::{
    limits::{PUBLIC_ANSWER_BYTES, PUBLIC_CONCURRENT_STREAMS, PUBLIC_MESSAGE_BYTES},
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
use tokio::{net::TcpListener, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::InterceptorLayer, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    accept::{self, Places},
    engine::Engine,
    error::ApiError,
    http::check_key,
};

/// The service's full name, as health checks ask for it.
const SERVICE: &str = "lockstep.v1.Inference";

/// The public service.
struct Front {
    engine: Arc<Engine>,
}

/// Serves until `close`, then lets open calls end.
///
/// # Errors
/// Those of the transport.
pub async fn serve(
    engine: Arc<Engine>,
    listener: TcpListener,
    places: Places,
    close: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (reporter, health) = tonic_health::server::health_reporter();
    // Until the engine is asked: tonic's own default is SERVING.
    for service in ["", SERVICE] {
        reporter
            .set_service_status(service, ServingStatus::NotServing)
            .await;
    }
    // Older tools (grpcurl before 1.9, grpcio-reflection) speak v1alpha only.
    let newer = reflection().build_v1()?;
    let older = reflection().build_v1alpha()?;
    let inference = InferenceServer::new(Front {
        engine: engine.clone(),
    })
    .max_decoding_message_size(PUBLIC_MESSAGE_BYTES)
    .max_encoding_message_size(PUBLIC_ANSWER_BYTES);
    let key = engine.api_key.clone();
    let authorized = tower::ServiceBuilder::new()
        .layer(InterceptorLayer::new(move |request: Request<()>| {
            let shown = request.metadata().get("authorization");
            check_key(key.as_deref(), shown.map(|value| value.as_bytes()))
                .map_err(ApiError::into_status)?;
            Ok(request)
        }))
        .service(inference);
    let header_bytes = u32::try_from(engine.config.server.limits.header_bytes);
    let watcher = tokio::spawn(report(engine, reporter, close.clone()));
    let served = Server::builder()
        .max_concurrent_streams(PUBLIC_CONCURRENT_STREAMS)
        .http2_max_header_list_size(header_bytes.unwrap_or(u32::MAX))
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .add_service(health)
        .add_service(newer)
        .add_service(older)
        .add_service(authorized)
        .serve_with_incoming_shutdown(accept::incoming(listener, places), close.cancelled_owned())
        .await;
    watcher.abort();
    Ok(served?)
}

/// Reflection on what this port serves.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(LOCKSTEP_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(SERVICE)
        .with_service_name("grpc.health.v1.Health")
}

/// SERVING while requests are let in and steps run on every rank. On `close`,
/// open watches end, which would hold up the server's end otherwise.
async fn report(engine: Arc<Engine>, mut reporter: HealthReporter, close: CancellationToken) {
    let limit = Duration::from_secs(engine.config.timeouts.health_s);
    let mut period = tokio::time::interval(limit.max(Duration::from_secs(1)));
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut gate = engine.gate.subscribe();
    let mut link = engine.scheduler.state();
    // One that the last check did not see makes it worthless.
    let mut changed = async || {
        tokio::select! {
            changed = gate.changed() => changed.is_ok(),
            changed = link.changed() => changed.is_ok(),
            () = close.cancelled() => false,
        }
    };
    loop {
        let healthy = tokio::select! {
            biased;
            open = changed() => if open { continue } else { break },
            health = engine.healthy(false) => health.is_ok(),
        };
        let status = match healthy {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        for service in ["", SERVICE] {
            reporter.set_service_status(service, status).await;
        }
        tokio::select! {
            open = changed() => if !open { break },
            _ = period.tick() => {}
        }
    }
    for service in ["", SERVICE] {
        reporter.clear_service_status(service).await;
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Inference for Front {
    type GenerateStream = Answers;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Answers>, Status> {
        self.engine.metrics.called("Generate");
        let answers = generate::generate(&self.engine, request.into_inner()).await;
        answers.map(Response::new).map_err(ApiError::into_status)
    }

    async fn abort(
        &self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        self.engine.metrics.called("Abort");
        let id = request.into_inner().request_id;
        if id.is_empty() {
            return Err(ApiError::invalid("request_id", "'request_id' is missing.").into_status());
        }
        let found = self.engine.scheduler.abort(Some(id)).await > 0;
        Ok(Response::new(AbortResponse { found }))
    }

    async fn tokenize(
        &self,
        request: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, Status> {
        self.engine.metrics.called("Tokenize");
        info::tokenize(&self.engine, request.into_inner())
            .await
            .map(Response::new)
            .map_err(ApiError::into_status)
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, Status> {
        self.engine.metrics.called("Detokenize");
        info::detokenize(&self.engine, request.into_inner())
            .await
            .map(Response::new)
            .map_err(ApiError::into_status)
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        self.engine.metrics.called("GetModelInfo");
        Ok(Response::new(info::model(&self.engine)))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        self.engine.metrics.called("GetServerInfo");
        info::server(&self.engine)
            .await
            .map(Response::new)
            .map_err(ApiError::into_status)
    }
}
