//! All ranks of a group as threads of this process: for `lockstep generate`,
//! offline benchmarks and tests.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use lockstep_backend::{Backend, Groups};
use lockstep_collective::{Collective, Options, local_group_with};
use lockstep_devices::{Device, DeviceOptions, OnDevice, Registry};
use lockstep_model::{LoadProgress, WeightOrigin};
use lockstep_speculation::DrafterRegistry;
use lockstep_types::EngineConfig;
use lockstep_types::step::{RankResult, StepPlan, StepResult};

use super::{MaskPlace, StateProbe, Worker, WorkerError, WorkerLimits, WorkerOptions, open};
use agreed::agreed;
use commands::{Aside, Command};

mod agreed;
mod commands;

/// Callback of every rank while it loads. It gets the rank and its progress.
pub type OnProgress = Arc<dyn Fn(usize, LoadProgress) + Send + Sync>;

/// Parts of a group beside its configuration.
#[derive(Clone, Default)]
pub struct LocalOptions {
    /// Algorithms that speculation may name.
    pub registry: Registry,
    /// Folder of packed weights to read and fill.
    pub weight_cache: Option<PathBuf>,
    /// Callback for every rank's loading.
    pub progress: Option<OnProgress>,
    /// Place of the masks of constrained requests; `None`: the one that the environment names.
    pub masks: Option<MaskPlace>,
    /// Probe of recurrent states, for tests.
    pub state_probe: StateProbe,
}

/// The options of [`LocalOptions`] for a known kind of device.
pub(crate) struct GroupOptions<'a, B: Backend> {
    /// The algorithms that speculation may name.
    pub drafters: &'a DrafterRegistry<B>,
    /// Folder of packed weights: see [`LocalOptions::weight_cache`].
    pub weight_cache: Option<&'a Path>,
    /// Callback for loading: see [`LocalOptions::progress`].
    pub progress: Option<&'a OnProgress>,
    /// Place of masks: see [`LocalOptions::masks`].
    pub masks: Option<MaskPlace>,
    /// Probe of recurrent states: see [`LocalOptions::state_probe`].
    pub state_probe: StateProbe,
}

impl<'a, B: Backend> GroupOptions<'a, B> {
    /// Makes options with `drafters` and nothing else.
    pub fn new(drafters: &'a DrafterRegistry<B>) -> Self {
        Self {
            drafters,
            weight_cache: None,
            progress: None,
            masks: None,
            state_probe: StateProbe::default(),
        }
    }
}

/// Worker threads that follow the same plans. Plans queue up, and results come in the order of
/// the plans. Dropping the group ends the threads.
pub struct LocalGroup {
    ranks: Vec<Rank>,
    descriptions: Vec<String>,
    origins: Vec<WeightOrigin>,
    weight_bytes: usize,
    attn_tp_size: usize,
}

/// A rank with its description once it has loaded, or the reason why it did not start.
type Started = (usize, Result<Loaded, WorkerError>);

/// Description of a rank and its weights.
struct Loaded {
    description: String,
    origin: WeightOrigin,
    weight_bytes: usize,
}

struct Rank {
    /// Sends commands to the rank; `None` once the group is being dropped.
    commands: Option<Sender<Command>>,
    results: Receiver<Result<RankResult, WorkerError>>,
    thread: Option<JoinHandle<()>>,
}

impl LocalGroup {
    /// Loads all ranks on their devices, not pinned, and waits until they are ready.
    ///
    /// # Errors
    /// The [`WorkerError`] of the rank that failed first.
    pub fn start(config: &EngineConfig, options: &LocalOptions) -> Result<Self, WorkerError> {
        let (registry, kind) = (&options.registry, config.device.kind);
        registry.run(kind, Start { config, options })
    }

    /// Starts a group as [`Self::start`] does, on devices of `B`. The errors are the same.
    pub(crate) fn start_on_device<B: Device>(
        config: &EngineConfig,
        options: &GroupOptions<'_, B>,
    ) -> Result<Self, WorkerError> {
        let engine = config.clone();
        let folder = options.weight_cache.map(Path::to_owned);
        let opens = move |rank, groups| {
            let device = DeviceOptions::new(&engine);
            open::<B>(
                &engine,
                rank,
                &device.of_rank(rank, folder.as_deref()),
                groups,
            )
        };
        Self::start_on(config, options, opens)
    }

    /// Starts a group as [`Self::start_on_device`] does, on backends that `open` makes from a
    /// rank and its groups.
    pub(crate) fn start_on<B, F>(
        config: &EngineConfig,
        options: &GroupOptions<'_, B>,
        open: F,
    ) -> Result<Self, WorkerError>
    where
        B: Backend + 'static,
        F: Fn(usize, Groups) -> Result<B, WorkerError> + Send + Sync + 'static,
    {
        let (config, open) = (Arc::new(config.clone()), Arc::new(open));
        let exchange = Options {
            max_elements: WorkerLimits::new(&config).exchange_elements(&config),
            threads_per_rank: config.parallel.threads_per_rank,
            // The first collective comes when all ranks have loaded.
            timeout: Duration::from_secs(
                config
                    .timeouts
                    .startup_s
                    .max(config.timeouts.step_watchdog_s),
            ),
            ..Options::default()
        };
        let (ready, starts) = channel();
        let mut ranks = Vec::new();
        for (rank, collective) in local_group_with(config.parallel.tp_size, &exchange)
            .into_iter()
            .enumerate()
        {
            let (commands, taken) = channel();
            let (given, results) = channel();
            let loading = Loading {
                config: config.clone(),
                rank,
                collective: Box::new(collective),
                weight_cache: options.weight_cache.map(Path::to_owned),
                progress: options.progress.cloned(),
                masks: options.masks,
                state_probe: options.state_probe.clone(),
                ready: ready.clone(),
            };
            let (open, drafters) = (open.clone(), options.drafters.clone());
            let thread = std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(move || loading.serve(&*open, &drafters, &taken, &given))
                .map_err(|_| WorkerError::Ended { rank })?;
            ranks.push(Rank {
                commands: Some(commands),
                results,
                thread: Some(thread),
            });
        }
        drop(ready);
        let loaded = all_loaded(&starts, ranks.len())?;
        Ok(Self {
            ranks,
            attn_tp_size: config.parallel.attn_tp_size(),
            weight_bytes: loaded.iter().map(|rank| rank.weight_bytes).sum(),
            origins: loaded.iter().map(|rank| rank.origin.clone()).collect(),
            descriptions: loaded.into_iter().map(|rank| rank.description).collect(),
        })
    }

    /// Returns the description of each rank.
    pub fn descriptions(&self) -> &[String] {
        &self.descriptions
    }

    /// Returns the bytes of packed weights, over all ranks.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Returns the origin of each rank's weights.
    pub fn weight_origins(&self) -> &[WeightOrigin] {
        &self.origins
    }

    /// Queues a plan on every rank.
    ///
    /// # Errors
    /// [`WorkerError::Ended`] when a rank is gone; [`Self::recv`] returns the reason.
    pub fn send(&self, plan: StepPlan) -> Result<(), WorkerError> {
        let plan = Arc::new(plan);
        self.send_all(|| Command::Plan(plan.clone()))
    }

    /// Waits for the oldest plan's results of all ranks, compares their
    /// digests and joins those of the DP ranks' leads.
    ///
    /// # Errors
    /// The [`WorkerError`] of a rank; [`WorkerError::Diverged`].
    pub fn recv(&self) -> Result<StepResult, WorkerError> {
        let mut results = Vec::with_capacity(self.ranks.len());
        let mut failures = Vec::new();
        for (rank, thread) in self.ranks.iter().enumerate() {
            match thread.results.recv() {
                Ok(Ok(result)) => results.push(result),
                Ok(Err(error)) => failures.push(error),
                Err(_) => failures.push(WorkerError::Ended { rank }),
            }
        }
        if let Some(error) = cause(failures) {
            return Err(error);
        }
        agreed(results, self.attn_tp_size)
    }

    /// Calls [`Self::send`], then [`Self::recv`].
    ///
    /// # Errors
    /// The [`WorkerError`] of a rank; [`WorkerError::Diverged`].
    pub fn step(&self, plan: StepPlan) -> Result<StepResult, WorkerError> {
        // A rank that is gone has left its reason among the results.
        let _ = self.send(plan);
        self.recv()
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            rank.commands = None;
        }
        for rank in &mut self.ranks {
            if let Some(thread) = rank.thread.take() {
                // A panic has been printed by the thread itself.
                let _ = thread.join();
            }
        }
    }
}

/// Waits until every rank has reported, or has dropped its sender in a panic.
fn all_loaded(starts: &Receiver<Started>, size: usize) -> Result<Vec<Loaded>, WorkerError> {
    let mut started: Vec<_> = (0..size).map(|_| None).collect();
    for (rank, report) in starts {
        started[rank] = Some(report);
    }
    let mut all = Vec::with_capacity(size);
    let mut failures = Vec::new();
    for (rank, report) in started.into_iter().enumerate() {
        match report {
            Some(Ok(loaded)) => all.push(loaded),
            Some(Err(error)) => failures.push(error),
            None => failures.push(WorkerError::Ended { rank }),
        }
    }
    cause(failures).map_or(Ok(all), Err)
}

/// Returns the failure that the other failures follow from. A rank that only lost its peers is
/// no cause, nor is a rank that ended before it was asked.
fn cause(failures: Vec<WorkerError>) -> Option<WorkerError> {
    let weight = |error: &WorkerError| match error {
        WorkerError::Ended { .. } => 1,
        error if error.collective().is_some() => 2,
        _ => 0,
    };
    failures.into_iter().min_by_key(weight)
}

/// The start of a group, for every kind of device.
struct Start<'a> {
    config: &'a EngineConfig,
    options: &'a LocalOptions,
}

impl OnDevice for Start<'_> {
    type Output = Result<LocalGroup, WorkerError>;

    fn run<B: Device>(self, drafters: &DrafterRegistry<B>) -> Self::Output {
        let Self { config, options } = self;
        let options = GroupOptions {
            weight_cache: options.weight_cache.as_deref(),
            progress: options.progress.as_ref(),
            masks: options.masks,
            state_probe: options.state_probe.clone(),
            ..GroupOptions::new(drafters)
        };
        LocalGroup::start_on_device(config, &options)
    }
}

/// The parts that a rank's thread starts from.
struct Loading {
    config: Arc<EngineConfig>,
    rank: usize,
    collective: Box<dyn Collective>,
    weight_cache: Option<PathBuf>,
    progress: Option<OnProgress>,
    masks: Option<MaskPlace>,
    state_probe: StateProbe,
    ready: Sender<Started>,
}

impl Loading {
    /// Runs a rank's thread: loads, reports, then follows plans until the first error, or until
    /// no plan can come any more.
    fn serve<B, F>(
        self,
        open: &F,
        drafters: &DrafterRegistry<B>,
        commands: &Receiver<Command>,
        results: &Sender<Result<RankResult, WorkerError>>,
    ) where
        B: Backend + 'static,
        F: Fn(usize, Groups) -> Result<B, WorkerError>,
    {
        let (rank, progress, cache) = (self.rank, self.progress, self.weight_cache);
        let groups = Groups::form(self.collective, self.config.parallel.dp_size);
        let opened = groups.map_err(WorkerError::from);
        let opened = opened.and_then(|groups| open(rank, groups));
        let loaded = opened.and_then(|backend| {
            let mut progress = |at| {
                if let Some(progress) = &progress {
                    progress(rank, at);
                }
            };
            let options = WorkerOptions {
                drafters,
                weight_cache: cache.as_deref(),
                progress: &mut progress,
            };
            let mut worker = Worker::load(&self.config, rank, backend, options)?;
            let masks = self.masks.map_or_else(MaskPlace::of_environment, Ok);
            worker.set_mask_place(masks?)?;
            worker.state_probe = self.state_probe;
            Ok(worker)
        });
        let mut worker = match loaded {
            Ok(worker) => worker,
            Err(error) => {
                let _ = self.ready.send((rank, Err(error)));
                return;
            }
        };
        let loaded = Loaded {
            description: worker.describe(),
            origin: worker.weight_origin().clone(),
            weight_bytes: worker.weight_bytes(),
        };
        if self.ready.send((rank, Ok(loaded))).is_err() {
            return;
        }
        drop(self.ready);
        let mut aside = Aside::default();
        for command in commands {
            let plan = match command {
                Command::Plan(plan) => plan,
                Command::Adapter(command) => {
                    aside.run(&mut worker, command);
                    continue;
                }
            };
            let result = worker.step(&plan);
            let failed = result.is_err();
            if results.send(result).is_err() || failed {
                return;
            }
        }
    }
}
