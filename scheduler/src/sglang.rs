//! `sglang.grpc.scheduler.SglangScheduler`, wire-compatible, so that SGLang's
//! gateway can use this engine as one of its workers: tokens in, tokens out.
//!
//! The gateway detokenizes and matches stop strings itself. So `original_text`, `stop`,
//! `skip_special_tokens` and `no_stop_trim` have no effect here, as its contract wants.

mod adapters;
mod calls;
mod constraints;
mod convert;
mod events;
mod generate;
mod info;
mod loads;
mod service;
mod tokenizer;
mod trace;

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use lockstep_ports::{Budget, Health, Port};
use lockstep_process::RoleContext;
use lockstep_proto::pb;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

use crate::{error::RunError, inbox::Commands, net::listen_tcp};
use service::Service;

/// The service's full name, also in `grpc.health.v1`.
const NAME: &str = "sglang.grpc.scheduler.SglangScheduler";

/// Binds the public port and returns the server's future. `known` is true while steps run, as
/// far as that is known without another step.
///
/// # Errors
/// [`RunError::Io`] when the port can't be bound.
pub async fn server(
    ctx: Arc<RoleContext>,
    (port, budget): (Arc<Port>, Arc<Budget>),
    commands: Commands,
    known: watch::Receiver<bool>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<>, RunError> {
    let server = &ctx.engine.server;
    let addr = format!(
        "{}:{}",
        server.host,
        server.sglang_grpc_port.unwrap_or_default()
    );
    let listener = listen_tcp(&addr)?;
    let (health, routes) =
        Health::routes(NAME, pb::SGLANG_DESCRIPTORS)
            .await
            .map_err(|source| RunError::Io {
                what: "describing the SGLang service".to_owned(),
                source,
            })?;
    let steps = (known, commands.clone());
    let report = report_health(health, steps, stop.clone(), ctx.clone());
    tokio::spawn(report);
    let routes = routes.add_service(Service::grpc(ctx, commands, budget));
    Ok(port.serve(listener, routes.prepare().into_axum_router(), stop))
}

/// Reports "serving" only while steps run, and not while the server drains.
async fn report_health(
    health: Health,
    (known, commands): (watch::Receiver<bool>, Commands),
    stop: CancellationToken,
    ctx: Arc<RoleContext>,
) {
    let period = Duration::from_secs(ctx.engine.timeouts.health_s);
    let lifecycle = ctx.link.lifecycle();
    let (leave, drain) = (&lifecycle.leave, &lifecycle.drain);
    let serves = || *known.borrow() && !leave.is_cancelled() && !drain.is_cancelled();
    // The result is known to all from then on.
    let check = || async {
        let found = commands.check_health(period, false).await;
        found.is_ok_and(|found| found.healthy)
    };
    let steps = WatchStream::from_changes(known.clone()).map(|_| ());
    let leaves = stream::once(leave.cancelled());
    let drains = stream::once(drain.cancelled());
    let changes = stream::select(stream::select(leaves, drains), steps);
    let changes = pin!(changes);
    health.report(serves, changes, check, period, stop).await;
}
