//! The process around the worker: two threads, one that talks, one that computes.

mod abort;
mod adapters;
mod collectives;
mod commands;
mod compute;
mod inspect;
mod stream;

use std::sync::{Arc, mpsc};

use abort::SharedAbort;
use compute::Computing;
use lockstep_devices::Registry;
use lockstep_ports::NodeTls;
use lockstep_process::{Role, RoleContext};

use crate::RunError;

/// Messages that may wait for the stream: ready and, with overlap, two results.
const OUTGOING: usize = 8;

/// Runs one worker until the scheduler ends its stream. `registry` holds the
/// algorithms that speculation may name.
///
/// # Errors
/// Why it ended, unless the scheduler closed the stream in order.
pub fn run(ctx: RoleContext, registry: &Registry) -> Result<(), RunError> {
    let Role::Worker(rank) = ctx.role else {
        return Err(RunError::Role(ctx.role.to_string()));
    };
    let ctx = Arc::new(ctx);
    let (orders, incoming) = mpsc::channel();
    let (outgoing, messages) = tokio::sync::mpsc::channel(OUTGOING);
    let abort = SharedAbort::default();
    let tls = ctx.node.dist_tls.as_ref().map(NodeTls::load).transpose()?;
    let listener = collectives::bind(&ctx.engine, tls.as_ref())?;
    let hello = stream::hello(&ctx, rank, listener.as_ref());
    let talker = std::thread::Builder::new()
        .name("grpc".to_owned())
        .spawn({
            let (ctx, abort) = (ctx.clone(), abort.clone());
            let leaving = outgoing.downgrade();
            move || stream::talk(&ctx, (hello, tls), messages, leaving, orders, &abort)
        })
        .map_err(|source| RunError::Io {
            what: "starting the gRPC thread".to_owned(),
            source,
        })?;

    let computed = registry.run(
        ctx.engine.device.kind,
        Computing {
            ctx: &ctx,
            rank,
            listener,
            orders: &incoming,
            outgoing: &outgoing,
            abort: &abort,
        },
    );
    drop(outgoing);
    // Ends the stream if it is the compute thread that gave up.
    drop(incoming);
    let talked = talker
        .join()
        .unwrap_or_else(|_| Err(RunError::Scheduler("the gRPC thread panicked".to_owned())));
    match (computed, talked) {
        // A collective fails if another rank failed, or if its wait was ended because the
        // scheduler left. The cause is then the stream's error.
        (Err(error), Err(cause)) if collectives::is_collective(&error) => {
            tracing::warn!(%error, "this rank waited for others");
            Err(cause)
        }
        (Err(error), _) | (Ok(()), Err(error)) => Err(error),
        (Ok(()), Ok(())) => Ok(()),
    }
}
