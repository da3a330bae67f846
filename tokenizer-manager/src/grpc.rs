//! The gRPC front: `lockstep.v1.Inference`, health and reflection.

mod convert;
mod generate;
mod info;

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::Stream;
use lockstep_proto::{
    limits::{PUBLIC_ANSWER_BYTES, PUBLIC_MESSAGE_BYTES, SMALL_MESSAGE_BYTES},
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
use tonic::{
    Request, Response, Status,
    service::{InterceptorLayer, Routes},
};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{app::App, error::ApiError, http::known_as};

/// The service's full name, as health checks ask for it.
const SERVICE: &str = "lockstep.v1.Inference";

/// The public service.
struct InferenceService {
    app: Arc<App>,
}

/// Serves until `close`, then lets open calls end.
///
/// # Errors
/// The reflection service could not be built.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    close: CancellationToken,
) -> Result<(), tonic_reflection::server::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    // tonic's default is SERVING; nothing is known before the first check.
    for service in ["", SERVICE] {
        reporter
            .set_service_status(service, ServingStatus::NotServing)
            .await;
    }
    // Older tools (grpcurl before 1.9, grpcio-reflection) speak v1alpha only.
    let newer = reflection().build_v1()?;
    let older = reflection().build_v1alpha()?;
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
    let routes = Routes::new(health.max_decoding_message_size(SMALL_MESSAGE_BYTES))
        .add_service(newer.max_decoding_message_size(SMALL_MESSAGE_BYTES))
        .add_service(older.max_decoding_message_size(SMALL_MESSAGE_BYTES))
        .add_service(authorized);
    let port = app.ports.grpc.clone();
    let health_reports = tokio::spawn(report_health(app, reporter, close.clone()));
    port.serve(listener, routes.prepare().into_axum_router(), close)
        .await;
    health_reports.abort();
    Ok(())
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
async fn report_health(app: Arc<App>, mut reporter: HealthReporter, close: CancellationToken) {
    let limit = Duration::from_secs(app.config.timeouts.health_s);
    let mut period = tokio::time::interval(limit.max(Duration::from_secs(1)));
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut gate = app.gate.subscribe();
    let mut link = app.scheduler.state();
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
            health = app.healthy(false) => health.is_ok(),
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
impl Inference for InferenceService {
    type GenerateStream = Answers;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Answers>, Status> {
        self.app.metrics.called("Generate");
        let answers = generate::generate(&self.app, request.into_inner()).await;
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
