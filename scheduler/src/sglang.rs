//! `sglang.grpc.scheduler.SglangScheduler`, wire-compatible, so that SGLang's
//! gateway can use this engine as one of its workers: tokens in, tokens out.
//!
//! The gateway detokenizes and matches stop strings itself; `original_text`,
//! `stop`, `skip_special_tokens` and `no_stop_trim` therefore have no effect
//! here, as the contract wants it.

mod calls;
mod convert;
mod events;
mod generate;
mod info;
mod service;
mod tokenizer;

use std::{future::Future, sync::Arc, time::Duration};

use lockstep_ports::{Budget, Port};
use lockstep_process::RoleContext;
use lockstep_proto::{limits::SMALL_MESSAGE_BYTES, pb};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{error::RunError, inbox::Commands, net::listen_tcp};
use service::Service;

/// The service's full name, also in `grpc.health.v1`.
const NAME: &str = "sglang.grpc.scheduler.SglangScheduler";

/// Binds the public port and returns what serves it.
///
/// # Errors
/// [`RunError::Io`] when the port can't be bound.
pub async fn server(
    ctx: Arc<RoleContext>,
    (port, budget): (Arc<Port>, Arc<Budget>),
    commands: Commands,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<>, RunError> {
    let server = &ctx.engine.server;
    let addr = format!(
        "{}:{}",
        server.host,
        server.sglang_grpc_port.unwrap_or_default()
    );
    let listener = listen_tcp(&addr)?;
    let (reporter, health) = tonic_health::server::health_reporter();
    // Until the engine is asked: tonic's own default is SERVING.
    for service in ["", NAME] {
        reporter
            .set_service_status(service, tonic_health::ServingStatus::NotServing)
            .await;
    }
    tokio::spawn(report_health(
        reporter,
        commands.clone(),
        stop.clone(),
        ctx.clone(),
    ));
    // Older tools (grpcurl before 1.9, grpcio-reflection) speak v1alpha only.
    let newer = reflection().build_v1().map_err(reflecting)?;
    let older = reflection().build_v1alpha().map_err(reflecting)?;
    let service = Service::grpc(ctx, commands, budget);
    let routes = Routes::new(health.max_decoding_message_size(SMALL_MESSAGE_BYTES))
        .add_service(newer.max_decoding_message_size(SMALL_MESSAGE_BYTES))
        .add_service(older.max_decoding_message_size(SMALL_MESSAGE_BYTES))
        .add_service(service);
    Ok(port.serve(listener, routes.prepare().into_axum_router(), stop))
}

/// Reflection on what this port serves.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::SGLANG_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(NAME)
        .with_service_name("grpc.health.v1.Health")
}

fn reflecting(error: tonic_reflection::server::Error) -> RunError {
    RunError::Io {
        what: "building the reflection service".to_owned(),
        source: std::io::Error::other(error),
    }
}

/// `grpc.health.v1` follows the engine: serving only while steps run. On `stop`
/// open watches end, which would hold up the server's end otherwise.
async fn report_health(
    mut reporter: tonic_health::server::HealthReporter,
    commands: Commands,
    stop: CancellationToken,
    ctx: Arc<RoleContext>,
) {
    let limit = Duration::from_secs(ctx.engine.timeouts.health_s);
    let mut period = tokio::time::interval(limit.max(Duration::from_secs(1)));
    loop {
        let healthy = tokio::select! {
            () = stop.cancelled() => false,
            answer = commands.check_health(limit, false) => {
                answer.is_ok_and(|answer| answer.healthy)
            }
        };
        let draining = ctx.link.lifecycle().drain.is_cancelled();
        let status = if healthy && !draining {
            tonic_health::ServingStatus::Serving
        } else {
            tonic_health::ServingStatus::NotServing
        };
        reporter.set_service_status("", status).await;
        reporter.set_service_status(NAME, status).await;
        if stop.is_cancelled() {
            break;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = ctx.link.lifecycle().drain.cancelled(), if !draining => {}
            _ = period.tick() => {}
        }
    }
    for service in ["", NAME] {
        reporter.clear_service_status(service).await;
    }
}
