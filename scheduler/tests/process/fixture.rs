//! A scheduler on a thread, workers that simulate the model, and a frontend.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use lockstep_config::{Hardware, ServeArgs};
use lockstep_planner::{
    PlannerConfig,
    sim::{SimModel, SimWorker},
};
use lockstep_process::{ControlLink, Role, RoleContext, connect_unix};
use lockstep_proto::pb::lockstep::{
    AbortTrace, CheckHealthRequest, CheckHealthResponse, FiguresAnswer, FiguresWanted,
    FrontFigures, FrontendEvent, FrontendHello, FrontendMessage, ReloadWeights, TraceAborted,
    WeightsInUse, WeightsReloaded, WorkerFailure, WorkerHello, WorkerMessage, WorkerReady,
    frontend_client::FrontendClient, frontend_message, worker_command,
    worker_gateway_client::WorkerGatewayClient, worker_message,
};
use lockstep_types::drafter::{
    CorpusCommand, CorpusSize, DrafterCommand, DrafterReply, DrafterResult,
};
use lockstep_types::{Algorithms, ConstraintWork, EngineConfig, NodeConfig};
use lockstep_types::{
    request::{Output, Request},
    sampling::SamplingParams,
    step::{StepDigests, StepPlan},
};
use tokio::{sync::mpsc, task::JoinHandle as TokioHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use crate::sim_adapters::{Orders, SimAdapters};

/// Time limit of everything in these tests; only something broken takes this long.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Time that the simulated workers report for every step, microseconds.
pub const FORWARD_US: u64 = 700;

/// Work for constraints that the first simulated worker reports for every step.
pub const CONSTRAINTS: ConstraintWork = ConstraintWork {
    masks: 2,
    mask_us: 30,
    waits: 1,
    wait_us: 400,
    compiles: 3,
    cache_hits: 4,
    failures: 5,
    cut_drafts: 6,
};

/// Bytes of weights that every simulated worker reports.
pub const WEIGHT_BYTES: u64 = 3 << 30;
/// Bytes of its KV cache that every simulated worker reports.
pub const KV_BYTES: u64 = 1 << 30;

/// A running scheduler.
pub struct Scheduler {
    pub engine: Arc<EngineConfig>,
    pub node: Arc<NodeConfig>,
    pub hash: String,
    pub link: ControlLink,
    /// Number of times that workers were told to forget the weights that they looked at.
    pub forgotten: Arc<AtomicUsize>,
    /// Orders about adapters that rank 0 got.
    pub adapter_orders: Orders,
    thread: Option<JoinHandle<Result<(), lockstep_scheduler::RunError>>>,
    _dir: tempfile::TempDir,
}

/// Returns the options that tests vary.
pub fn args(tp_size: usize) -> ServeArgs {
    let mut args = ServeArgs::default();
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    args.model.model_path = Some(models.into());
    args.parallel.tp_size = Some(tp_size);
    args.parallel.threads_per_rank = Some(1);
    args.memory.max_total_tokens = Some(4096);
    args.schedule.max_running_requests = Some(8);
    args.timeouts.health_timeout = Some(2);
    args
}

/// Returns the options for `dp_size` DP ranks.
pub fn dp_args(tp_size: usize, dp_size: usize) -> ServeArgs {
    let mut args = args(tp_size);
    args.parallel.dp_size = Some(dp_size);
    args.parallel.enable_dp_attention = dp_size > 1;
    args
}

impl Scheduler {
    /// Starts a scheduler; the test attaches its workers.
    pub fn start(args: &ServeArgs) -> Self {
        Self::start_with(args, &Algorithms::default())
    }

    /// Starts a scheduler that knows these algorithms.
    pub fn start_with(args: &ServeArgs, algorithms: &Algorithms) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let resolved = lockstep_config::resolve(args, &Hardware::detect(), algorithms, &NoMemory)
            .expect("valid options");
        let (engine, mut node) = resolved.value;
        node.run_dir = dir.path().to_owned();
        let (link, _reports) = ControlLink::detached();
        let ctx = RoleContext {
            config_hash: lockstep_config::hash(&engine),
            engine: Arc::new(engine),
            node: Arc::new(node),
            role: Role::Scheduler,
            link: link.clone(),
            traces: None,
        };
        Self {
            engine: ctx.engine.clone(),
            node: ctx.node.clone(),
            hash: ctx.config_hash.clone(),
            link,
            forgotten: Arc::default(),
            adapter_orders: Orders::default(),
            thread: Some(std::thread::spawn(move || lockstep_scheduler::run(ctx))),
            _dir: dir,
        }
    }

    /// Starts a scheduler with honest workers and waits until it serves.
    pub async fn serving(args: &ServeArgs) -> (Self, Frontend) {
        Self::start(args).attached().await
    }

    /// Attaches honest workers and waits until it serves.
    pub async fn attached(self) -> (Self, Frontend) {
        let scheduler = self;
        for rank in 0..scheduler.engine.parallel.tp_size {
            scheduler.worker(rank, |_, _| true).await;
        }
        let mut frontend = scheduler.frontend().await;
        frontend.healthy().await;
        (scheduler, frontend)
    }

    /// Attaches a worker. `act` sees each plan and the digests about to be sent,
    /// may change it, and ends the worker by returning false.
    pub async fn worker(
        &self,
        rank: usize,
        act: impl FnMut(&StepPlan, &mut StepDigests) -> bool + Send + 'static,
    ) -> TokioHandle<Result<(), Status>> {
        let channel = connect_unix(&self.node.workers_socket(), LIMIT)
            .await
            .expect("listening");
        let planner = PlannerConfig::from(&*self.engine);
        let vocab_size = self.engine.model.vocab_size as u32;
        let worker = SimWorker::new(&planner, SimModel { vocab_size }, true)
            .of_dp_rank(self.engine.parallel.dp_rank(rank));
        let hello = WorkerHello {
            rank: rank as u32,
            config_hash: self.hash.clone(),
            ..Default::default()
        };
        let forgotten = self.forgotten.clone();
        let adapters = SimAdapters::new(rank as u32, &self.adapter_orders);
        tokio::spawn(work(channel, hello, (worker, adapters), act, forgotten))
    }

    /// Connects as a tokenizer-manager.
    pub async fn frontend(&self) -> Frontend {
        let channel = connect_unix(&self.node.frontend_socket(), LIMIT)
            .await
            .expect("listening");
        Frontend::connect(channel, self.hash.clone())
            .await
            .expect("welcome")
    }

    /// Returns the outcome of the scheduler's run.
    pub async fn ended(mut self) -> Result<(), lockstep_scheduler::RunError> {
        let thread = self.thread.take().expect("ended once");
        tokio::task::spawn_blocking(move || thread.join().expect("no panic"))
            .await
            .expect("joined")
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.link.lifecycle().halt.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn work(
    channel: Channel,
    hello: WorkerHello,
    (mut worker, mut adapters): (SimWorker, SimAdapters),
    mut act: impl FnMut(&StepPlan, &mut StepDigests) -> bool,
    forgotten: Arc<AtomicUsize>,
) -> Result<(), Status> {
    let (messages, outgoing) = mpsc::channel(8);
    let send = async |kind| {
        let _ = messages.send(WorkerMessage { kind: Some(kind) }).await;
    };
    let rank = hello.rank;
    send(worker_message::Kind::Hello(hello)).await;
    let attached = WorkerGatewayClient::new(channel)
        .attach(ReceiverStream::new(outgoing))
        .await?;
    let mut commands = attached.into_inner();
    while let Some(command) = commands.message().await? {
        match command.kind {
            Some(worker_command::Kind::Start(_)) => {
                send(worker_message::Kind::Ready(WorkerReady {
                    weight_bytes: WEIGHT_BYTES,
                    kv_bytes: KV_BYTES,
                    ..WorkerReady::default()
                }))
                .await;
            }
            Some(worker_command::Kind::Plan(plan)) => {
                let plan = StepPlan::try_from(plan).expect("a valid plan");
                if let [part] = &plan.parts[..] {
                    adapters.plan(part);
                }
                let mut result = match worker.execute(&plan) {
                    Ok(result) => result,
                    Err(error) => {
                        let message = error.to_string();
                        send(worker_message::Kind::Failure(WorkerFailure {
                            message,
                            diverged: false,
                        }))
                        .await;
                        return Ok(());
                    }
                };
                result.digests.tensor = plan.step;
                result.forward_us = FORWARD_US;
                if rank == 0 {
                    result.constraints = CONSTRAINTS;
                }
                if !act(&plan, &mut result.digests) {
                    return Ok(());
                }
                send(worker_message::Kind::Result(result.into())).await;
            }
            // A reload that never ends.
            Some(worker_command::Kind::Reload(reload))
                if reload.model_path == "/endless" && !reload.check_only => {}
            Some(worker_command::Kind::Reload(reload)) => {
                let error = refusal(rank, &reload);
                send(worker_message::Kind::Reloaded(WeightsReloaded { error })).await;
            }
            Some(worker_command::Kind::Forget(_)) => {
                forgotten.fetch_add(1, Relaxed);
            }
            Some(worker_command::Kind::Adapter(order)) => {
                if let Some(read) = adapters.order(rank, order) {
                    send(worker_message::Kind::Adapter(read)).await;
                }
            }
            Some(worker_command::Kind::Drafter(command)) => {
                assert_eq!(rank, 0, "only rank 0 drafts");
                let added = match command.try_into().expect("a command") {
                    DrafterCommand::Corpora(CorpusCommand::Add { name, token_ids }) => {
                        let tokens = token_ids.len() as u64;
                        vec![CorpusSize { name, tokens }]
                    }
                    DrafterCommand::Corpora(_) => Vec::new(),
                };
                let reply = DrafterResult::Ok(DrafterReply::Corpora(added));
                send(worker_message::Kind::Drafter(reply.into())).await;
            }
            None => {}
        }
    }
    Ok(())
}

/// Returns the reason why a simulated rank refuses weights, which their path decides.
fn refusal(rank: u32, reload: &ReloadWeights) -> Option<String> {
    let refuses = match reload.model_path.as_str() {
        "/other-shape" => true,
        "/other-shape-on-rank-1" => rank == 1,
        "/cut-off" => !reload.check_only,
        "/only-on-rank-0" => !reload.check_only && rank > 0,
        _ => false,
    };
    refuses.then(|| "they do not fit".to_owned())
}

/// A tokenizer-manager's end of the stream.
pub struct Frontend {
    pub client: FrontendClient<Channel>,
    /// The newest weights that it was told of.
    pub weights: Option<WeightsInUse>,
    /// The newest answer to an abort by id.
    pub aborted: Option<TraceAborted>,
    /// The newest question for its figures.
    pub wanted: Option<FiguresWanted>,
    /// The newest health that it was told of.
    pub told_healthy: Option<bool>,
    messages: mpsc::Sender<FrontendMessage>,
    events: Streaming<FrontendEvent>,
}

impl Frontend {
    /// Says hello and waits for the welcome.
    pub async fn connect(channel: Channel, config_hash: String) -> Result<Self, Status> {
        let mut client = FrontendClient::new(channel);
        let (messages, outgoing) = mpsc::channel(64);
        let hello = FrontendHello {
            config_hash,
            name: "test".to_owned(),
        };
        let hello = FrontendMessage {
            kind: Some(frontend_message::Kind::Hello(hello)),
        };
        messages.send(hello).await.expect("room");
        let mut events = client
            .exchange(ReceiverStream::new(outgoing))
            .await?
            .into_inner();
        let welcome = events.message().await?.expect("a welcome");
        assert!(welcome.welcome.is_some());
        Ok(Self {
            client,
            weights: welcome.weights,
            aborted: None,
            wanted: None,
            told_healthy: welcome.healthy,
            messages,
            events,
        })
    }

    /// Waits until a step has run on every rank. An engine that is starting says so at once.
    pub async fn healthy(&mut self) {
        let healthy = async {
            let mut answer = self.check_health().await;
            while answer.reason.contains("starting") {
                answer = self.check_health().await;
            }
            assert!(answer.healthy, "{}", answer.reason);
        };
        tokio::time::timeout(LIMIT, healthy).await.expect("a step");
    }

    /// Asks if a step runs on every rank.
    pub async fn check_health(&mut self) -> CheckHealthResponse {
        let request = CheckHealthRequest {
            timeout_ms: LIMIT.as_millis() as u32,
            force_step: false,
        };
        let answer = self.client.check_health(request).await;
        answer.expect("an answer").into_inner()
    }

    /// Submits a request.
    pub async fn submit(&self, number: u64, request: Request) {
        let submit = frontend_message::Kind::Submit(lockstep_proto::submit(request, number, None));
        self.messages
            .send(FrontendMessage { kind: Some(submit) })
            .await
            .expect("connected");
    }

    /// Aborts a request.
    pub async fn abort(&self, request: u64) {
        let abort = frontend_message::Kind::Abort(lockstep_proto::pb::lockstep::Abort { request });
        self.messages
            .send(FrontendMessage { kind: Some(abort) })
            .await
            .expect("connected");
    }

    /// Aborts the requests of all frontends that clients know by one of these ids, or all
    /// requests. Returns their number.
    pub async fn abort_trace(&mut self, query: u64, trace_ids: Option<&[&str]>) -> u32 {
        let ids = trace_ids.unwrap_or_default();
        let abort = frontend_message::Kind::AbortTrace(AbortTrace {
            query,
            trace_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            all: trace_ids.is_none(),
        });
        self.messages
            .send(FrontendMessage { kind: Some(abort) })
            .await
            .expect("connected");
        loop {
            self.outputs().await.expect("an answer");
            if let Some(answer) = self.aborted.take() {
                assert_eq!(answer.query, query);
                return answer.requests;
            }
        }
    }

    /// Waits until the frontend is asked for its figures, and answers as frontend `index`.
    pub async fn tell_figures(&mut self, index: u32) -> FiguresWanted {
        let wanted = loop {
            self.outputs().await.expect("a question");
            if let Some(wanted) = self.wanted.take() {
                break wanted;
            }
        };
        let figures = Some(FrontFigures {
            index,
            ..FrontFigures::default()
        });
        let answer = frontend_message::Kind::Figures(FiguresAnswer {
            query: wanted.query,
            figures,
        });
        self.messages
            .send(FrontendMessage { kind: Some(answer) })
            .await
            .expect("connected");
        wanted
    }

    /// Stops a request because its client needs no more.
    pub async fn stop(&self, request: u64) {
        let stop = frontend_message::Kind::Stop(lockstep_proto::pb::lockstep::Stop { request });
        self.messages
            .send(FrontendMessage { kind: Some(stop) })
            .await
            .expect("connected");
    }

    /// Returns the next outputs; empty if another event comes that is not about health alone.
    pub async fn outputs(&mut self) -> Result<Vec<(u64, Output)>, Status> {
        loop {
            let told = self.told_healthy.take();
            let outputs = self.event().await?;
            let of_health = self.told_healthy.is_some() && outputs.is_empty();
            self.told_healthy = self.told_healthy.or(told);
            if !of_health {
                return Ok(outputs);
            }
        }
    }

    /// Waits until the frontend is told this health.
    pub async fn until_told(&mut self, healthy: bool) {
        while self.told_healthy != Some(healthy) {
            self.event().await.expect("an event");
        }
    }

    async fn event(&mut self) -> Result<Vec<(u64, Output)>, Status> {
        let event = tokio::time::timeout(LIMIT, self.events.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no event"))??
            .ok_or_else(|| Status::unavailable("the stream ended"))?;
        self.weights = event.weights.or(self.weights.take());
        self.aborted = event.trace_aborted.or(self.aborted.take());
        self.wanted = event.figures_wanted.or(self.wanted.take());
        self.told_healthy = event.healthy.or(self.told_healthy);
        let convert = |output: lockstep_proto::pb::lockstep::Output| {
            (
                output.request,
                Output::try_from(output).expect("a valid output"),
            )
        };
        Ok(event.outputs.into_iter().map(convert).collect())
    }

    /// Collects all outputs of `number` requests until they have ended.
    pub async fn finish(&mut self, number: usize) -> std::collections::BTreeMap<u64, Output> {
        let mut sums = std::collections::BTreeMap::<u64, Output>::new();
        while sums.values().filter(|sum| sum.finish.is_some()).count() < number {
            for (request, output) in self.outputs().await.expect("outputs") {
                let sum = sums.entry(request).or_default();
                sum.token_ids.extend(output.token_ids);
                sum.logprobs.extend(output.logprobs);
                sum.prompt_logprobs.extend(output.prompt_logprobs);
                sum.finish = output.finish.or(sum.finish.take());
                sum.dp_rank = output.dp_rank;
            }
        }
        sums
    }

    /// Returns the requests that have not ended.
    pub async fn requests(
        &mut self,
        limit: u32,
    ) -> lockstep_proto::pb::lockstep::ListRequestsResponse {
        let request = lockstep_proto::pb::lockstep::ListRequestsRequest { limit };
        let answer = self.client.list_requests(request).await;
        answer.expect("an answer").into_inner()
    }

    /// Returns the current counters.
    pub async fn load(&mut self) -> lockstep_proto::pb::lockstep::GetLoadResponse {
        let request = lockstep_proto::pb::lockstep::GetLoadRequest {};
        self.client
            .get_load(request)
            .await
            .expect("an answer")
            .into_inner()
    }
}

/// Returns a request over `prompt` for `max_new_tokens` tokens.
pub fn request(prompt: &[u32], max_new_tokens: u32) -> Request {
    let sampling = SamplingParams {
        ignore_eos: true,
        seed: 7,
        ..SamplingParams::default()
    };
    Request {
        trace_id: "test".to_owned(),
        generation: sampling.into(),
        ..Request::new(prompt.to_vec(), max_new_tokens)
    }
}

/// Memory of a worker that needs next to nothing.
struct NoMemory;

impl lockstep_types::Footprint for NoMemory {
    fn exists(&self, _: lockstep_types::DeviceKind) -> bool {
        false
    }

    fn shared_part(&self, _: &lockstep_types::ModelConfig, _: usize) -> u32 {
        1 << 16
    }

    fn room(
        &self,
        _: lockstep_types::DeviceKind,
        _: usize,
    ) -> Result<Option<lockstep_types::DeviceRoom>, String> {
        Ok(None)
    }

    fn serves(&self, _: &lockstep_types::EngineShape<'_>) -> Result<(), String> {
        Ok(())
    }

    fn serves_format(
        &self,
        _: lockstep_types::DeviceKind,
        _: lockstep_types::WeightFormat,
        _: lockstep_types::MatrixRole,
    ) -> Result<(), &'static str> {
        Ok(())
    }

    fn kernels(&self, _: lockstep_types::DeviceKind, _: &str) -> Result<&'static str, String> {
        Ok("plain")
    }

    fn collectives(
        &self,
        _: lockstep_types::DeviceKind,
        _: Option<&std::path::Path>,
    ) -> Result<String, String> {
        Err("there is nothing of that kind".to_owned())
    }

    fn rank(&self, _: &lockstep_types::EngineShape<'_>, _: usize) -> lockstep_types::RankMemory {
        let mut memory = lockstep_types::RankMemory::default();
        memory.target.kv_per_token = 1;
        memory
    }
}
