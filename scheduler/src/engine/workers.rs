//! Events of workers.

use std::time::Duration;

use lockstep_proto::pb::lockstep::{WorkerHello, WorkerReady};
use lockstep_types::step::RankResult;
use tokio::sync::oneshot;

use super::{Engine, Phase};
use crate::{
    error::RunError,
    inbox::{StreamEnd, WorkerEvent},
    worker_link::WorkerLink,
};

impl Engine {
    /// Handles one event of a rank; an error ends the engine.
    pub(super) fn handle_worker(
        &mut self,
        rank: usize,
        event: WorkerEvent,
    ) -> Result<(), RunError> {
        match event {
            WorkerEvent::Hello { hello, link, reply } => self.attach(&hello, link, reply)?,
            WorkerEvent::Ready(ready) => self.worker_ready(rank, ready)?,
            WorkerEvent::Result(result) => self.result(rank, result)?,
            WorkerEvent::Reloaded(reloaded) => self.worker_reloaded(rank, reloaded)?,
            WorkerEvent::Adapter(read) => self.adapter_read(rank, read)?,
            WorkerEvent::Drafter(reply) => self.drafter_answered(rank, reply),
            WorkerEvent::Leaving => {
                tracing::warn!(
                    rank,
                    "this rank's node was told to stop: finishing what runs"
                );
                self.leaving = Some(rank);
                self.phase = Phase::Draining;
            }
            WorkerEvent::StreamEnd(StreamEnd { reason, diverged }) => {
                let reason = format!("rank {rank}: {reason}");
                return Err(match diverged {
                    true => RunError::Diverged(reason),
                    false => RunError::Group(reason),
                });
            }
        }
        Ok(())
    }

    /// Adds a worker to the group, or answers with the reason why not. A second process for a
    /// rank must not end the one that serves.
    fn attach(
        &mut self,
        hello: &WorkerHello,
        link: WorkerLink,
        reply: oneshot::Sender<Result<(), String>>,
    ) -> Result<(), RunError> {
        let attached = self.group.attach(hello, link);
        // If the worker has left again, the end of its stream tells.
        let _ = reply.send(attached.as_ref().map(|_| ()).map_err(Clone::clone));
        match attached {
            Ok(all) => {
                tracing::info!(
                    rank = hello.rank,
                    pid = hello.pid,
                    node = hello.node_rank,
                    "worker attached"
                );
                if all {
                    let spans_nodes = self.config.parallel.nnodes > 1;
                    self.group
                        .start(group_id(), spans_nodes)
                        .map_err(RunError::Group)?;
                }
            }
            Err(reason) => tracing::warn!(reason, "a worker was turned away"),
        }
        Ok(())
    }

    fn worker_ready(&mut self, rank: usize, ready: WorkerReady) -> Result<(), RunError> {
        tracing::info!(rank, backend = ready.backend, "worker ready");
        match self.group.ready(rank, ready) {
            true if self.phase == Phase::Starting => self.warm_up(),
            _ => Ok(()),
        }
    }

    fn result(&mut self, rank: usize, result: RankResult) -> Result<(), RunError> {
        self.traces.answered(rank, &result);
        let answered = self
            .group
            .take_result(rank, result)
            .map_err(RunError::Diverged)?;
        if let Some(result) = answered.result {
            // The ranks measured the time: a plan that is sent ahead of time waits.
            self.steps.record(Duration::from_micros(result.forward_us));
            self.depths.done(&result);
            self.planner.complete(self.clock.now(), result)?;
        }
        if !answered.everywhere {
            return Ok(());
        }
        let news = self.health.step_done(self.group.done_everywhere());
        self.tell_health(news);
        if self.phase == Phase::WarmingUp {
            self.phase = Phase::Serving;
            self.link.ready(&self.group.describe());
        }
        // A forced step may be owed although the planner had work when it was asked for.
        if self.planner.is_idle() && self.health.wanted() {
            self.probe();
        }
        Ok(())
    }
}

/// Returns a number that no other group on this machine has. Otherwise collectives of a group
/// that is being torn down could be mistaken for this group's.
fn group_id() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = since_epoch.map_or(0, |since| since.as_nanos());
    (u64::try_from(nanos & u128::from(u64::MAX >> 22)).unwrap_or(0) << 22)
        | u64::from(std::process::id() & ((1 << 22) - 1))
}
