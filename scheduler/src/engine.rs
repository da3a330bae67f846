//! The engine loop: events in, plans to the workers, outputs to the sinks.

mod adapters;
mod commands;
mod drafter;
mod flush;
mod requests;
mod status;
mod update;
mod workers;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_adaptive::DepthRange;
use lockstep_planner::{Planner, PlannerConfig};
use lockstep_process::{ControlLink, RoleContext};
use lockstep_proto::pb::lockstep::FlushCacheResponse;
use lockstep_types::{EngineConfig, NamedAdapter};
use tokio::{
    sync::oneshot,
    time::{Instant as TokioInstant, sleep_until, timeout},
};

use crate::{
    adapters::Adapters,
    clock::Clock,
    depth_range_file::DepthRangeFile,
    depth_stats::DepthStats,
    error::RunError,
    figures::Figures,
    health::Health,
    inbox::{Event, Inbox},
    kv_events::KvEvents,
    load::{HitRate, StepHistogram, Throughput},
    sinks::{SinkId, Sinks},
    traces::RequestTraces,
    worker_group::WorkerGroup,
};
use requests::unavailable;
use status::Status;
use update::Update;

/// Time between two checks of requests' time limits.
const TICK: Duration = Duration::from_millis(20);

/// Stage of the engine's life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Workers attach, load and connect.
    Starting,
    /// Every rank reads the adapters of the start.
    LoadingAdapters,
    /// The first step runs on every rank.
    WarmingUp,
    /// Requests are admitted and served.
    Serving,
    /// Running requests are finished; none is admitted.
    Draining,
}

/// State of the engine loop.
pub struct Engine {
    config: Arc<EngineConfig>,
    config_hash: String,
    link: ControlLink,
    inbox: Inbox,
    planner: Planner,
    group: WorkerGroup,
    sinks: Sinks,
    health: Health,
    kv_events: KvEvents,
    figures: Figures,
    steps: StepHistogram,
    throughput: Throughput,
    hit_rate: HitRate,
    /// Throughput of each DP rank.
    throughputs: Vec<Throughput>,
    traces: RequestTraces,
    depths: DepthStats,
    depth_range_file: DepthRangeFile,
    clock: Clock,
    phase: Phase,
    probes: u64,
    /// Rank whose node was told to stop.
    leaving: Option<usize>,
    /// Exchange of weights that is under way.
    update: Option<Update>,
    adapters: Adapters,
    /// Adapter that the ranks read.
    loading: Option<adapters::Loading>,
    /// Adapters that are loaded before requests are served.
    at_start: VecDeque<NamedAdapter>,
    /// Commands to the drafters that are under way.
    drafter_commands: drafter::Waiting,
    /// Callers that wait for an empty prefix cache.
    flushes: Vec<oneshot::Sender<FlushCacheResponse>>,
    status: Status,
    /// True if the planner was checked since it was last busy.
    checked: bool,
}

impl Engine {
    /// Makes an engine whose workers have yet to attach.
    ///
    /// # Errors
    /// [`RunError::Planner`] for sizes that make no planner, [`RunError::Io`] if the file with
    /// an operator's range of depths can't be read.
    pub fn new(ctx: &RoleContext, inbox: Inbox) -> Result<Self, RunError> {
        let planner = PlannerConfig {
            kv_events: ctx.engine.server.sglang_grpc_port.is_some(),
            ..PlannerConfig::from(&*ctx.engine)
        };
        let speculation = &ctx.engine.speculation;
        let throughput = Throughput::new(Instant::now());
        let depth_range_file = DepthRangeFile::new(ctx.node.depth_range_file());
        let range = depth_range_file.load().map_err(|source| RunError::Io {
            what: depth_range_file.path().display().to_string(),
            source,
        })?;
        let mut engine = Self {
            config: ctx.engine.clone(),
            config_hash: ctx.config_hash.clone(),
            link: ctx.link.clone(),
            inbox,
            planner: Planner::new(planner)?,
            group: WorkerGroup::new(&ctx.engine.parallel),
            sinks: Sinks::default(),
            health: Health::default(),
            kv_events: KvEvents::default(),
            figures: Figures::default(),
            steps: StepHistogram::default(),
            throughputs: vec![throughput.clone(); ctx.engine.parallel.dp_size],
            throughput,
            hit_rate: HitRate::new(Instant::now()),
            traces: RequestTraces::new(ctx)?,
            depths: DepthStats::new(speculation.initial_depth(), speculation.num_steps),
            depth_range_file,
            clock: Clock::start(),
            phase: Phase::Starting,
            probes: 0,
            leaving: None,
            update: None,
            adapters: Adapters::new(ctx.engine.adapters),
            loading: None,
            at_start: ctx.node.lora_paths.clone().into(),
            drafter_commands: drafter::Waiting::default(),
            flushes: Vec::new(),
            status: Status::default(),
            checked: true,
        };
        engine.allow_depths(range);
        Ok(engine)
    }

    /// Runs until drained, halted or failed. After a failure every request has its error when
    /// this returns.
    ///
    /// # Errors
    /// The reason why the engine can't go on.
    pub async fn run(mut self) -> Result<(), RunError> {
        let mut outcome = self.serve().await;
        if outcome.is_err() && self.is_told_to_stop().await {
            outcome = Err(RunError::Halted);
        }
        if let Err(error) = &outcome {
            // The launcher hears of the failure when the process ends, after clients have been
            // told: the launcher's own answer for them would say less.
            let message = if matches!(error, RunError::Halted) {
                tracing::info!("told to stop; requests that still run end with an error");
                "the server is shutting down".to_owned()
            } else {
                tracing::error!(%error, "the engine ends");
                format!("the engine failed: {error}")
            };
            self.planner
                .fail_all(unavailable(message, self.served_in()));
            let news = self.health.failed(&error.to_string());
            self.tell_health(news);
            let diverged = matches!(error, RunError::Diverged(_));
            self.group.fail(&error.to_string(), diverged);
            self.fail_update(&error.to_string());
            self.fail_loading(&error.to_string());
            self.deliver();
            self.traces.settle(u64::MAX);
        }
        outcome
    }

    /// Returns true if a rank's failure is really the end of a drain that took too long. Ranks
    /// may have heard of that end before this process does.
    async fn is_told_to_stop(&self) -> bool {
        const SOON: Duration = Duration::from_millis(200);
        let halt = &self.link.lifecycle().halt;
        self.phase == Phase::Draining && timeout(SOON, halt.cancelled()).await.is_ok()
    }

    async fn serve(&mut self) -> Result<(), RunError> {
        let link = self.link.clone();
        let lifecycle = link.lifecycle();
        // Pings are answered in this loop, so that a loop that hangs does not answer.
        let pings = link.answer_pings();
        tokio::pin!(pings);
        loop {
            self.advance()?;
            // Ranks behind the lead finish their last step, in which other ranks wait for them.
            let at_rest = self.planner.is_idle() && self.group.oldest().is_none();
            if self.phase == Phase::Draining && at_rest {
                tokio::select! {
                    outcome = self.drained() => return outcome,
                    never = &mut pings => match never {},
                }
            }
            let deadline = TokioInstant::from_std(self.next_deadline());
            tokio::select! {
                biased;
                () = lifecycle.halt.cancelled() => return Err(RunError::Halted),
                () = lifecycle.drain.cancelled(), if self.phase != Phase::Draining => {
                    self.phase = Phase::Draining;
                }
                never = &mut pings => match never {},
                event = self.inbox.recv() => {
                    let Some(event) = event else { return Err(RunError::Halted) };
                    self.handle(event)?;
                    while let Ok(event) = self.inbox.try_recv() {
                        self.handle(event)?;
                    }
                }
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Returns the outcome of a drain. If a node left, the drain ends with an error, so that
    /// the node is replaced, unless all nodes are told to stop. Nodes are told one after the
    /// other, and this node's front ends before this process is told.
    async fn drained(&self) -> Result<(), RunError> {
        const TOGETHER: Duration = Duration::from_secs(2);
        let Some(rank) = self.leaving else {
            return Ok(());
        };
        let lifecycle = self.link.lifecycle();
        tokio::select! {
            () = lifecycle.halt.cancelled() => Err(RunError::Halted),
            told = timeout(TOGETHER, lifecycle.drain.cancelled()) => {
                told.map_err(|_| RunError::Group(format!(
                    "the node of rank {rank} was told to stop and has left"
                )))
            }
        }
    }

    /// Plans as far ahead as allowed, and sends outputs.
    fn advance(&mut self) -> Result<(), RunError> {
        self.planner.tick(self.clock.now());
        self.advance_update()?;
        self.advance_adapters()?;
        self.answer_flushes();
        if self.phase != Phase::Starting && !self.reloads() {
            while self.group.takes_plans()
                && let Some(plan) = self.planner.plan()
            {
                self.depths.sent(&plan);
                self.traces.planned(plan.step, &self.planner);
                self.group.send(plan).map_err(RunError::Group)?;
            }
        }
        self.deliver();
        self.traces.settle(self.group.done_everywhere());
        self.kv_events
            .publish(&mut self.planner, &self.adapters.names());
        self.watch_steps()?;
        if self.phase == Phase::Starting {
            self.status.starting(|| self.group.awaited());
        } else {
            self.status.serving(|| self.planner.load());
        }
        if self.planner.is_idle() {
            self.check_integrity();
        } else {
            self.checked = false;
        }
        Ok(())
    }

    fn deliver(&mut self) {
        for (id, output) in self.planner.take_outputs() {
            self.traces.output(id, &output);
            self.sinks.push(id, output);
        }
        for sink in self.sinks.flush() {
            self.close(sink);
        }
    }

    /// Fails if a step takes longer than the watchdog allows: then a rank hangs.
    fn watch_steps(&self) -> Result<(), RunError> {
        let limit = Duration::from_secs(self.config.timeouts.step_watchdog_s);
        match self.group.oldest() {
            Some((sent, ranks)) if sent.elapsed() > limit => Err(RunError::Group(format!(
                "no answer from rank {ranks:?} for {} s (--watchdog-timeout)",
                limit.as_secs()
            ))),
            _ => Ok(()),
        }
    }

    /// Checks once per idle time that every page is accounted for.
    fn check_integrity(&mut self) {
        if std::mem::replace(&mut self.checked, true) {
            return;
        }
        if let Err(error) = self.planner.check_integrity() {
            tracing::error!(%error, "integrity check failed: please report this as a bug");
        }
    }

    fn next_deadline(&self) -> Instant {
        let now = Instant::now();
        if !self.planner.is_idle() {
            return now + TICK;
        }
        let waits = self.update.is_some() || self.loading.is_some();
        if self.phase == Phase::Starting || waits {
            return now + status::WAITING;
        }
        now + Duration::from_secs(self.config.timeouts.step_watchdog_s.max(1))
    }

    fn handle(&mut self, event: Event) -> Result<(), RunError> {
        match event {
            Event::Client(command) => self.handle_command(command),
            Event::Worker { rank, event } => self.handle_worker(rank, event),
        }
    }

    /// Sets an operator's range of depths, from the next plan on.
    fn allow_depths(&mut self, range: DepthRange) {
        self.planner.set_depth_range(range);
        self.depths.set_range(range);
    }

    fn close(&mut self, sink: SinkId) {
        for id in self.sinks.close(sink) {
            self.planner.abort(id);
        }
    }
}
