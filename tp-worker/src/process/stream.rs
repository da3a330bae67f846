//! The stream to the scheduler, on a thread that never computes.

use std::{sync::mpsc, time::Duration};

use lockstep_ports::NodeTls;
use lockstep_process::{RoleContext, connect_tcp, connect_unix, root_cause};
use lockstep_proto::{
    limits::INTERNAL_MESSAGE_BYTES,
    pb::lockstep::{
        AdapterOrder, GroupStart, ReloadWeights, WorkerCommand, WorkerFailure, WorkerHello,
        WorkerLeaving, WorkerMessage, worker_command, worker_gateway_client::WorkerGatewayClient,
        worker_message,
    },
};
use lockstep_types::{drafter::DrafterCommand, step::StepPlan};
use tokio::sync::mpsc::WeakSender;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Status, Streaming};

use super::{abort::SharedAbort, collectives::Listener};
use crate::RunError;

/// An order from the scheduler.
pub enum Order {
    /// Connect the collectives and load the weights.
    Start(GroupStart),
    /// Run one forward pass.
    Plan(StepPlan),
    /// Look at other weights, or load them.
    Reload(ReloadWeights),
    /// Close the folders of weights that were looked at.
    ForgetWeights,
    /// Read an adapter, or change what is in a place of adapters.
    Adapter(AdapterOrder),
    /// Handle a command to the drafter.
    Drafter(DrafterCommand),
    /// Write down the last steps, since ranks have diverged. It is the last order.
    WriteSteps,
}

/// Messages on their way to the scheduler.
pub type Outgoing = tokio::sync::mpsc::Sender<WorkerMessage>;

/// The worker's first message to the scheduler, and its TLS if nodes speak TLS.
pub type Introduction = (WorkerHello, Option<NodeTls>);

/// Makes the message by which the worker introduces itself.
pub fn hello(ctx: &RoleContext, rank: usize, listener: Option<&Listener>) -> WorkerHello {
    WorkerHello {
        rank: u32::try_from(rank).unwrap_or(u32::MAX),
        config_hash: ctx.config_hash.clone(),
        node_rank: u32::try_from(ctx.node.node_rank).unwrap_or(u32::MAX),
        collective_address: listener.map(Listener::address).unwrap_or_default(),
        pid: std::process::id(),
    }
}

/// Wraps a message.
pub fn message(kind: worker_message::Kind) -> WorkerMessage {
    WorkerMessage { kind: Some(kind) }
}

/// Tells the scheduler why this worker ends, if it still listens.
pub fn report(outgoing: &Outgoing, error: &RunError) {
    let failure = WorkerFailure {
        message: error.to_string(),
        diverged: error.is_divergence(),
    };
    let _ = outgoing.try_send(message(worker_message::Kind::Failure(failure)));
}

/// Attaches and carries messages both ways until either side ends.
pub fn talk(
    ctx: &RoleContext,
    hello: Introduction,
    messages: tokio::sync::mpsc::Receiver<WorkerMessage>,
    leaving: WeakSender<WorkerMessage>,
    orders: mpsc::Sender<Order>,
    abort: &SharedAbort,
) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| RunError::Io {
            what: "starting the gRPC runtime".to_owned(),
            source,
        })?;
    let lifecycle = ctx.link.lifecycle();
    let outcome = runtime.block_on(async {
        tokio::select! {
            () = lifecycle.halt.cancelled() => Err(RunError::Halted),
            () = leave(ctx, leaving) => Ok(()),
            never = ctx.link.answer_pings() => match never {},
            outcome = carry(ctx, hello, messages, &orders) => outcome,
        }
    });
    // A node that was told to stop leaves without an error.
    let left = ctx.node.node_rank > 0 && lifecycle.drain.is_cancelled();
    let outcome = if left { Ok(()) } else { outcome };
    // A compute thread must not go on waiting for a peer or for an order.
    drop(orders);
    if !abort.fire()
        && let Err(error) = &outcome
    {
        // The compute thread may wait for peers that will never join. This process cannot end
        // before that wait does, so the launcher has to know now.
        ctx.link.failed(&error.to_string());
    }
    outcome
}

/// On another node than the scheduler's, tells the scheduler once this node is told to stop.
/// The scheduler then finishes what runs and ends the stream. Returns only if there is no
/// scheduler to tell.
async fn leave(ctx: &RoleContext, leaving: WeakSender<WorkerMessage>) {
    if ctx.node.node_rank == 0 {
        return std::future::pending().await;
    }
    ctx.link.lifecycle().drain.cancelled().await;
    let Some(outgoing) = leaving.upgrade() else {
        return;
    };
    let told = message(worker_message::Kind::Leaving(WorkerLeaving {}));
    if outgoing.send(told).await.is_ok() {
        drop(outgoing);
        std::future::pending::<()>().await;
    }
}

async fn carry(
    ctx: &RoleContext,
    hello: Introduction,
    messages: tokio::sync::mpsc::Receiver<WorkerMessage>,
    orders: &mpsc::Sender<Order>,
) -> Result<(), RunError> {
    let mut commands = attach(ctx, hello, messages).await?;
    loop {
        let command = match commands.message().await {
            Ok(command) => command,
            Err(status) => {
                if status.code() == tonic::Code::Aborted {
                    // A compute thread that takes no orders any more knows it already.
                    let _ = orders.send(Order::WriteSteps);
                }
                return Err(RunError::Scheduler(status.message().to_owned()));
            }
        };
        let order = match command {
            Some(WorkerCommand {
                kind: Some(worker_command::Kind::Start(start)),
            }) => Order::Start(start),
            Some(WorkerCommand {
                kind: Some(worker_command::Kind::Plan(plan)),
            }) => Order::Plan(plan.try_into().map_err(|error| meaningless(&error))?),
            Some(WorkerCommand {
                kind: Some(worker_command::Kind::Reload(reload)),
            }) => Order::Reload(reload),
            Some(WorkerCommand {
                kind: Some(worker_command::Kind::Forget(_)),
            }) => Order::ForgetWeights,
            Some(WorkerCommand {
                kind: Some(worker_command::Kind::Adapter(order)),
            }) => Order::Adapter(order),
            Some(WorkerCommand {
                kind: Some(worker_command::Kind::Drafter(command)),
            }) => Order::Drafter(command.try_into().map_err(|error| meaningless(&error))?),
            Some(WorkerCommand { kind: None }) => continue,
            None => return Ok(()),
        };
        if orders.send(order).is_err() {
            // The compute thread gave up and says why itself. Its report is still leaving
            // through the request stream.
            while let Ok(Some(_)) = commands.message().await {}
            return Ok(());
        }
    }
}

fn meaningless(error: &lockstep_proto::WireError) -> RunError {
    RunError::Scheduler(format!("it sent a command without meaning: {error}"))
}

/// Returns the message of a status; for a broken connection also its cause.
fn why(status: &Status, remote: bool) -> String {
    let Some(source) = std::error::Error::source(status) else {
        return status.message().to_owned();
    };
    let hint = match remote {
        true => {
            "; where nodes have certificates (--dist-ssl-certfile), all have them, from roots that \
             all name"
        }
        false => "",
    };
    format!("{}: {}{hint}", status.message(), root_cause(source))
}

async fn attach(
    ctx: &RoleContext,
    (hello, tls): Introduction,
    messages: tokio::sync::mpsc::Receiver<WorkerMessage>,
) -> Result<Streaming<WorkerCommand>, RunError> {
    let limit = Duration::from_secs(ctx.engine.timeouts.startup_s);
    // Node 0's workers share the scheduler's machine. All others come over TCP.
    let channel = if ctx.node.node_rank == 0 {
        connect_unix(&ctx.node.workers_socket(), limit).await?
    } else {
        connect_tcp(
            &ctx.engine.parallel.dist_init_addr,
            limit,
            tls.map(|tls| tls.client),
        )
        .await?
    };
    let first = tokio_stream::once(message(worker_message::Kind::Hello(hello)));
    let mut request = Request::new(first.chain(ReceiverStream::new(messages)));
    if let Some(secret) = &ctx.node.dist_secret
        && let Ok(value) = format!("Bearer {secret}").parse()
    {
        request.metadata_mut().insert("authorization", value);
    }
    let response = WorkerGatewayClient::new(channel)
        .max_decoding_message_size(INTERNAL_MESSAGE_BYTES)
        .max_encoding_message_size(INTERNAL_MESSAGE_BYTES)
        .attach(request)
        .await
        .map_err(|status| RunError::Scheduler(why(&status, ctx.node.node_rank > 0)))?;
    Ok(response.into_inner())
}
