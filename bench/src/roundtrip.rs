//! Round trip of a step: a plan for N decode rows goes to a worker process over a Unix
//! socket, and its result comes back. The worker answers at once, so the measured time is
//! that of the seam between the processes alone.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    time::Instant,
};

use anyhow::{Context as _, bail};
use futures::{Stream, StreamExt as _};
use lockstep_proto::pb::lockstep::{
    WorkerCommand, WorkerMessage, worker_command,
    worker_gateway_client::WorkerGatewayClient,
    worker_gateway_server::{WorkerGateway, WorkerGatewayServer},
    worker_message,
};
use lockstep_types::step::{PlanPart, RankResult, SlotExtend, SlotOutput, StepPlan};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{report::Report, stats::Durations};

/// Round trip of a step between two processes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Decode rows per step, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,32,64,256",
          value_parser = clap::value_parser!(u32).range(1..))]
    rows: Vec<u32>,
    /// Steps per measurement.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Run as the worker on this socket (used by the benchmark itself).
    #[arg(long, hide = true)]
    peer: Option<PathBuf>,
}

/// Runs the benchmark; `None` in the process that is the worker.
pub fn run(args: &Args) -> anyhow::Result<Option<Report>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if let Some(socket) = &args.peer {
        runtime.block_on(peer(socket))?;
        return Ok(None);
    }
    runtime.block_on(measure(args)).map(Some)
}

/// The scheduler's end: hands the worker's stream to the measuring loop.
struct Gateway {
    attached: mpsc::Sender<(Streaming<WorkerMessage>, Plans)>,
}

type Plans = mpsc::Sender<Result<WorkerCommand, Status>>;

#[tonic::async_trait]
impl WorkerGateway for Gateway {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<WorkerCommand, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<WorkerMessage>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (plans, stream) = mpsc::channel(4);
        let gone = |_| Status::unavailable("the benchmark ended");
        self.attached
            .send((request.into_inner(), plans))
            .await
            .map_err(gone)?;
        Ok(Response::new(ReceiverStream::new(stream).boxed()))
    }
}

async fn measure(args: &Args) -> anyhow::Result<Report> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("workers.sock");
    let incoming = lockstep_process::listen_unix(&socket)?;
    let (attached, mut workers) = mpsc::channel(1);
    let service = WorkerGatewayServer::new(Gateway { attached });
    let server = tonic::transport::Server::builder().add_service(service);
    let serving = tokio::spawn(server.serve_with_incoming(incoming));
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .args(["bench", "roundtrip", "--peer"])
        .arg(&socket)
        .kill_on_drop(true)
        .spawn()
        .context("starting the worker process")?;
    let (mut results, plans) = tokio::select! {
        attached = workers.recv() => attached.context("no worker attached")?,
        ended = child.wait() => bail!("the worker process ended before it attached: {}", ended?),
    };

    let mut report = Report::new(
        "Scheduler to worker and back, one stream over a Unix socket",
        &["rows", "steps", "p50 us", "p99 us", "p99.9 us", "max us"],
    );
    for rows in &args.rows {
        let took = steps(*rows, args.steps, &mut results, &plans).await?;
        let figures = [50.0, 99.0, 99.9, 100.0].map(|percentile| took.us(percentile));
        report.row(
            [json!(rows), json!(took.count())]
                .into_iter()
                .chain(figures)
                .collect(),
        );
    }
    drop(plans);
    child.wait().await?;
    serving.abort();
    Ok(report)
}

async fn steps(
    rows: u32,
    steps: u64,
    results: &mut Streaming<WorkerMessage>,
    plans: &Plans,
) -> anyhow::Result<Durations> {
    let extend = |slot| SlotExtend {
        slot,
        prefill_len: 0,
        sample: true,
        new_pages: Vec::new(),
        ..SlotExtend::default()
    };
    let plan = StepPlan {
        parts: vec![PlanPart {
            extends: (0..rows).map(extend).collect(),
            ..PlanPart::default()
        }],
        ..Default::default()
    };
    let mut took = Durations::default();
    // The first tenth warms up sockets, allocators and branch predictors.
    for step in 0..steps + steps / 10 {
        let plan = StepPlan {
            step,
            ..plan.clone()
        };
        let start = Instant::now();
        let kind = Some(worker_command::Kind::Plan(plan.into()));
        plans
            .send(Ok(WorkerCommand { kind }))
            .await
            .context("the worker left")?;
        let answer = results.message().await?.context("the worker left")?;
        let Some(worker_message::Kind::Result(result)) = answer.kind else {
            bail!("the worker answered with something else than a result");
        };
        let result = RankResult::from(result);
        if step >= steps / 10 {
            took.record(start.elapsed());
        }
        anyhow::ensure!(result.outputs.len() == rows as usize, "a row was lost");
    }
    Ok(took)
}

/// The worker's end: answers at once, with one token per row.
async fn peer(socket: &Path) -> anyhow::Result<()> {
    let channel = lockstep_process::connect_unix(socket, std::time::Duration::from_secs(5)).await?;
    let (answers, outgoing) = mpsc::channel(4);
    let mut commands = WorkerGatewayClient::new(channel)
        .attach(ReceiverStream::new(outgoing))
        .await?
        .into_inner();
    while let Some(command) = commands.message().await? {
        let Some(worker_command::Kind::Plan(plan)) = command.kind else {
            continue;
        };
        let plan = StepPlan::try_from(plan)?;
        let output = |extend: &SlotExtend| SlotOutput {
            slot: extend.slot,
            token_ids: vec![7],
            ..Default::default()
        };
        let result = RankResult {
            step: plan.step,
            outputs: plan.rows().map(output).collect(),
            ..Default::default()
        };
        let kind = Some(worker_message::Kind::Result(result.into()));
        if answers.send(WorkerMessage { kind }).await.is_err() {
            break;
        }
    }
    Ok(())
}
