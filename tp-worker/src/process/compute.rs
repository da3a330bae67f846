//! The computing thread: it takes plans and gives results, and does nothing else.

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use lockstep_backend::{Backend, Groups};
use lockstep_devices::{Device, DeviceOptions, OnDevice};
use lockstep_model::LoadProgress;
use lockstep_process::RoleContext;
use lockstep_proto::pb::lockstep::{WeightsReloaded, WorkerReady, worker_message::Kind};
use lockstep_speculation::DrafterRegistry;

use super::{
    abort::SharedAbort,
    adapters::{self, ReadAside},
    collectives::{self, Listener},
    commands::CommandThread,
    inspect::{self, InspectedFolders},
    stream::{self, Order, Outgoing, message},
};
use crate::{
    RunError,
    worker::{Folders, MaskPlace, Worker, WorkerError, WorkerOptions, open},
};

/// The parts that the computing thread works with.
pub struct Computing<'a> {
    pub ctx: &'a RoleContext,
    pub rank: usize,
    /// The port that peers of other nodes connect to.
    pub listener: Option<Listener>,
    pub orders: &'a Receiver<Order>,
    pub outgoing: &'a Outgoing,
    pub abort: &'a SharedAbort,
}

impl OnDevice for Computing<'_> {
    /// The error of the device, the model or the group.
    type Output = Result<(), RunError>;

    /// Computes until the orders end, and reports an error to the scheduler.
    fn run<B: Device>(self, drafters: &DrafterRegistry<B>) -> Self::Output {
        let (orders, outgoing, mut worker) = (self.orders, self.outgoing, None);
        let computed = self.compute(drafters, &mut worker);
        // Reports before the worker is dropped, which may take a while if peers are gone.
        if let Err(error) = &computed {
            // A peer that failed to load may have left the group before its report arrived.
            if worker.is_none() && collectives::is_collective(error) {
                is_told(orders);
            }
            stream::report(outgoing, error);
        }
        computed
    }
}

impl Computing<'_> {
    /// Loads the shard into `worker` and follows the orders.
    fn compute<B: Device>(
        self,
        drafters: &DrafterRegistry<B>,
        worker: &mut Option<Worker<B>>,
    ) -> Result<(), RunError> {
        // The orders end before the start if another rank fails first.
        let Ok(Order::Start(start)) = self.orders.recv() else {
            return Ok(());
        };
        let (ctx, rank) = (self.ctx, self.rank);
        let secret = ctx.node.dist_secret.as_deref();
        let (collective, handle) =
            collectives::connect(&ctx.engine, rank, secret, self.listener, &start)?;
        self.abort.arm(handle);
        let worker = worker.insert(load(ctx, rank, collective, drafters)?);
        worker.read_vocabulary();
        let ready = WorkerReady {
            weight_bytes: worker.weight_bytes() as u64,
            kv_bytes: worker.kv_bytes() as u64,
            backend: worker.describe(),
        };
        tracing::info!(backend = ready.backend, "loaded");
        ctx.link.ready(&ready.backend);
        let message = message(Kind::Ready(ready));
        if self.outgoing.blocking_send(message).is_err() {
            return Ok(());
        }
        let following = Following {
            ctx,
            rank,
            orders: self.orders,
            outgoing: self.outgoing,
        };
        let outcome = following.follow(worker);
        following.ended(worker, outcome)
    }
}

/// Time limit for hearing the reason after peers have left.
const REASON: Duration = Duration::from_secs(1);

/// Waits until the scheduler has heard why peers have left, for [`REASON`] at most. Returns
/// true if other ranks have found that ranks differ.
fn is_told(orders: &Receiver<Order>) -> bool {
    let deadline = Instant::now() + REASON;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match orders.recv_timeout(left) {
            Ok(Order::WriteSteps) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// The parts with which a loaded worker takes its orders.
struct Following<'a> {
    ctx: &'a RoleContext,
    rank: usize,
    orders: &'a Receiver<Order>,
    outgoing: &'a Outgoing,
}

impl Following<'_> {
    /// Follows orders until they end. Returns true if they end because other ranks have found
    /// that ranks differ.
    fn follow<B: Device>(&self, worker: &mut Worker<B>) -> Result<bool, RunError> {
        let (ctx, outgoing) = (self.ctx, self.outgoing);
        let commands = CommandThread::new(outgoing.downgrade());
        let (looked, read) = (InspectedFolders::default(), ReadAside::default());
        while let Ok(order) = self.orders.recv() {
            let answer = match order {
                Order::Plan(plan) => Kind::Result(worker.step(&plan)?.into()),
                Order::Reload(wanted) if wanted.check_only => {
                    let dir = ctx.node.weight_update_dir.clone();
                    let served = worker.served().with_free(free::<B>(ctx, self.rank)?);
                    inspect::begin(served, wanted, dir, looked.clone(), outgoing.downgrade());
                    continue;
                }
                Order::Reload(wanted) => {
                    let folders = looked.take(&wanted);
                    tracing::info!(model = wanted.model_path, "reading other weights");
                    Kind::Reloaded(reload(worker, folders.as_ref())?)
                }
                Order::ForgetWeights => {
                    looked.forget();
                    continue;
                }
                Order::Adapter(order) => {
                    let outgoing = outgoing.downgrade();
                    adapters::follow(worker, ctx, order, &read, outgoing)?;
                    continue;
                }
                Order::Drafter(command) => {
                    commands.send(worker.drafter_commands(), command);
                    continue;
                }
                Order::WriteSteps => return Ok(true),
                Order::Start(_) => continue,
            };
            if outgoing.blocking_send(message(answer)).is_err() {
                break;
            }
        }
        Ok(false)
    }

    /// Writes down the last steps if this rank or another has found that ranks differ.
    fn ended<B: Device>(
        &self,
        worker: &Worker<B>,
        outcome: Result<bool, RunError>,
    ) -> Result<(), RunError> {
        let found = outcome.as_ref().is_err_and(RunError::is_divergence);
        let left = outcome.as_ref().is_err_and(collectives::is_collective);
        let told = matches!(outcome, Ok(true)) || !found && left && is_told(self.orders);
        if !told && !found {
            return outcome.map(|_| ());
        }
        // The file lies beside the run's own folder, which is removed with the run.
        let run_dir = &self.ctx.node.run_dir;
        let file = match worker.write_steps(run_dir.parent().unwrap_or(run_dir)) {
            Ok(file) => file,
            Err(error) => {
                tracing::error!(%error, "the last steps can't be written down");
                return outcome.map(|_| ());
            }
        };
        tracing::error!(file = %file.display(), "ranks have diverged; the last steps are in this file");
        match outcome {
            Err(RunError::Worker(source)) if found => Err(RunError::Diverged {
                source: Box::new(source),
                rank: self.rank,
                file,
            }),
            outcome => outcome.map(|_| ()),
        }
    }
}

/// Returns the rank's share of its device's free bytes; `None` if the device has no memory of
/// its own.
fn free<B: Device>(ctx: &RoleContext, rank: usize) -> Result<Option<u64>, RunError> {
    let (device, local) = (ctx.engine.device, ctx.engine.ranks_per_node());
    let free = B::free(device.of_rank(rank % local)).map_err(WorkerError::from)?;
    Ok(free.map(|free| free / device.ranks_per_device(local) as u64))
}

/// Loads other weights from the folders that were looked at.
fn reload<B: Backend + 'static>(
    worker: &mut Worker<B>,
    folders: Option<&Folders>,
) -> Result<WeightsReloaded, RunError> {
    let error = match worker.reload(folders) {
        Ok(()) => None,
        Err(WorkerError::Reload(reason)) => Some(reason),
        Err(error) => return Err(error.into()),
    };
    Ok(WeightsReloaded { error })
}

fn load<B: Device>(
    ctx: &RoleContext,
    rank: usize,
    collective: Box<dyn lockstep_collective::Collective>,
    drafters: &DrafterRegistry<B>,
) -> Result<Worker<B>, RunError> {
    let local_rank = rank % ctx.engine.ranks_per_node();
    let cores = ctx.node.cores.get(local_rank).map(Vec::as_slice);
    let options = DeviceOptions::new(&ctx.engine)
        .of_rank(local_rank, ctx.node.weight_cache.as_deref())
        .pinned(cores);
    let groups = Groups::form(collective, ctx.engine.parallel.dp_size)?;
    let backend = open::<B>(&ctx.engine, rank, &options, groups)?;
    let link = ctx.link.clone();
    let mut progress = move |LoadProgress { phase, done, total }: LoadProgress| {
        link.progress(phase.label(), done, total);
    };
    let options = WorkerOptions {
        drafters,
        weight_cache: ctx.node.weight_cache.as_deref(),
        progress: &mut progress,
    };
    let mut worker = Worker::load(&ctx.engine, rank, backend, options)?;
    worker.set_mask_place(MaskPlace::of_environment()?)?;
    let origin = worker.weight_origin();
    for warning in &origin.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(file) = &origin.file {
        let done = if origin.restored { "read" } else { "kept" };
        tracing::info!(file = %file.display(), "packed weights {done}");
    }
    Ok(worker)
}
