//! The worker group: its ranks, the steps in flight, and the check that all ranks did the same.

use std::{collections::VecDeque, time::Instant};

use lockstep_proto::pb::lockstep::{
    self as pb, AdapterOrder, DrafterCommand, GroupStart, ReloadWeights, WorkerHello, WorkerReady,
};
use lockstep_types::{
    ConstraintWork, ParallelConfig,
    step::{RankResult, StepPlan, StepResult},
};

use crate::worker_link::WorkerLink;
use in_flight::InFlight;

mod in_flight;

/// Most steps that some rank has not answered: two under overlap, and two more for ranks whose
/// answers come a little later than the leads'.
const MAX_AHEAD: usize = 4;

/// One rank.
#[derive(Default)]
struct Member {
    link: Option<WorkerLink>,
    collective_address: String,
    ready: Option<WorkerReady>,
    /// Number of the last step whose result is here.
    done: u64,
    /// Total time of its steps, by the rank's own clock, microseconds.
    took_us: u64,
    /// Its work for constraints.
    constraints: ConstraintWork,
}

/// Result of a rank's answer.
#[derive(Debug, Default, PartialEq)]
pub struct Answered {
    /// Result of the step, with the last answer of the DP ranks' leads.
    pub result: Option<StepResult>,
    /// True if the step is done on every rank.
    pub everywhere: bool,
}

/// All ranks.
pub struct WorkerGroup {
    members: Vec<Member>,
    parallel: ParallelConfig,
    steps: VecDeque<InFlight>,
    sent: u64,
    done_everywhere: u64,
}

impl WorkerGroup {
    /// Makes a group without attached ranks.
    pub fn new(parallel: &ParallelConfig) -> Self {
        Self {
            members: (0..parallel.tp_size).map(|_| Member::default()).collect(),
            parallel: parallel.clone(),
            steps: VecDeque::new(),
            sent: 0,
            done_everywhere: 0,
        }
    }

    /// Adds a worker. Returns true if all ranks are here.
    ///
    /// # Errors
    /// The reason why this worker can't be part of the group.
    pub fn attach(&mut self, hello: &WorkerHello, link: WorkerLink) -> Result<bool, String> {
        let size = self.members.len();
        let rank = hello.rank as usize;
        let member = self
            .members
            .get_mut(rank)
            .ok_or_else(|| format!("rank {rank} attached to a group of {size}"))?;
        if member.link.is_some() {
            return Err(format!("rank {rank} attached twice"));
        }
        member.link = Some(link);
        member
            .collective_address
            .clone_from(&hello.collective_address);
        Ok(self.members.iter().all(|member| member.link.is_some()))
    }

    /// Returns the ranks that have not attached, and the attached ranks that are not ready yet.
    pub fn awaited(&self) -> [Vec<usize>; 2] {
        let those = |is: fn(&Member) -> bool| {
            let members = self.members.iter().enumerate();
            members
                .filter_map(|(rank, member)| is(member).then_some(rank))
                .collect()
        };
        [
            those(|member| member.link.is_none()),
            those(|member| member.link.is_some() && member.ready.is_none()),
        ]
    }

    /// Tells every rank to connect its collectives.
    ///
    /// # Errors
    /// Names the rank that can't be told.
    pub fn start(&self, group_id: u64, spans_nodes: bool) -> Result<(), String> {
        let start = GroupStart {
            group_id,
            collective_addresses: if spans_nodes {
                self.members
                    .iter()
                    .map(|member| member.collective_address.clone())
                    .collect()
            } else {
                Vec::new()
            },
            shared_memory_name: if spans_nodes {
                String::new()
            } else {
                format!("lockstep-{group_id:016x}")
            },
        };
        self.broadcast(|link| link.start(start.clone()))
    }

    /// Notes that a rank is ready. Returns true if all are.
    pub fn ready(&mut self, rank: usize, ready: WorkerReady) -> bool {
        if let Some(member) = self.members.get_mut(rank) {
            member.ready = Some(ready);
        }
        self.members.iter().all(|member| member.ready.is_some())
    }

    /// Returns the bytes of weights and of the KV cache, summed over all ranks that are ready.
    pub fn memory(&self) -> (u64, u64) {
        let ready = self
            .members
            .iter()
            .filter_map(|member| member.ready.as_ref());
        ready.fold((0, 0), |(weights, kv), ready| {
            (weights + ready.weight_bytes, kv + ready.kv_bytes)
        })
    }

    /// Returns, by rank, the total time of its steps from plan taken to tokens known,
    /// microseconds.
    pub fn step_us(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.took_us).collect()
    }

    /// Returns the work of all ranks for constraints, since the start.
    pub fn constraint_work(&self) -> ConstraintWork {
        let mut sum = ConstraintWork::default();
        let members = self.members.iter();
        members.for_each(|member| sum += member.constraints);
        sum
    }

    /// Describes the ranks' backend, for people.
    pub fn describe(&self) -> String {
        let backend = |member: &Member| member.ready.as_ref().map(|ready| ready.backend.clone());
        self.members.first().and_then(backend).unwrap_or_default()
    }

    /// Sends every rank its view of a plan.
    ///
    /// # Errors
    /// Names the rank that does not take it.
    pub fn send(&mut self, plan: StepPlan) -> Result<(), String> {
        self.sent = plan.step;
        let step = plan.step;
        let parts = self.parallel.dp_size;
        self.steps.push_back(InFlight::new(step, parts));
        let plans: Vec<_> = match parts {
            1 => vec![pb::StepPlan::from(plan)],
            _ => {
                let of = |dp_rank| plan.for_dp_rank(dp_rank).into();
                (0..parts).map(of).collect()
            }
        };
        let ranks = self.parallel.attn_tp_size();
        let all = self.members.iter().enumerate();
        let with_plan = |(rank, member)| (rank, member, &plans[rank / ranks]);
        for (rank, member, plan) in all.map(with_plan) {
            send_to(std::iter::once((rank, member)), |link| {
                link.plan(plan.clone())
            })?;
        }
        Ok(())
    }

    /// Asks every rank to look at or load other weights.
    ///
    /// # Errors
    /// Names the rank that does not take the order.
    pub fn reload(&self, reload: &ReloadWeights) -> Result<(), String> {
        self.broadcast(|link| link.reload(reload.clone()))
    }

    /// Tells every rank to forget the weights that it looked at.
    ///
    /// # Errors
    /// Names the rank that does not take the order.
    pub fn forget_weights(&self) -> Result<(), String> {
        self.broadcast(WorkerLink::forget_weights)
    }

    /// Sends every rank an order about adapters.
    ///
    /// # Errors
    /// Names the rank that does not take the order.
    pub fn order_adapter(&self, order: &AdapterOrder) -> Result<(), String> {
        self.broadcast(|link| link.order_adapter(order.clone()))
    }

    /// Sends a command to the drafters, one on the lead of each DP rank.
    ///
    /// # Errors
    /// Names the rank that does not take it.
    pub fn command_drafters(&self, command: &DrafterCommand) -> Result<(), String> {
        let step = self.parallel.attn_tp_size();
        let leads = self.members.iter().enumerate().step_by(step);
        send_to(leads, |link| link.command_drafter(command.clone()))
    }

    /// Takes a rank's result. Results of leads count; those of other ranks only confirm.
    ///
    /// # Errors
    /// A result out of order, or digests that differ from another rank's. Then the ranks have
    /// diverged, and nothing that they compute can be trusted.
    pub fn take_result(&mut self, rank: usize, result: RankResult) -> Result<Answered, String> {
        let size = self.members.len();
        let step = result.step;
        let member = &mut self.members[rank];
        if step != member.done + 1 {
            return Err(format!(
                "rank {rank} answered step {step} after step {}",
                member.done
            ));
        }
        member.done = step;
        member.took_us += result.forward_us;
        member.constraints += result.constraints;
        let in_flight = self
            .steps
            .iter_mut()
            .find(|in_flight| in_flight.step == step)
            .ok_or_else(|| format!("rank {rank} answered step {step}, which was not sent"))?;
        let dp_rank = self.parallel.dp_rank(rank);
        let leads = dp_rank * self.parallel.attn_tp_size() == rank;
        let result = in_flight.take(rank, (dp_rank, leads), result)?;
        let everywhere = in_flight.answered == size;
        if everywhere {
            self.done_everywhere = step;
            self.steps.retain(|in_flight| in_flight.answered < size);
        }
        Ok(Answered { result, everywhere })
    }

    /// Returns true if another plan may be sent. The leads' tokens are enough to plan on, but
    /// plans must not run away from a rank that hangs.
    pub fn takes_plans(&self) -> bool {
        self.steps.len() < MAX_AHEAD
    }

    /// Returns the number of the last step sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of the last step done on every rank.
    pub fn done_everywhere(&self) -> u64 {
        self.done_everywhere
    }

    /// Returns the time at which the oldest unanswered step was sent, and the ranks that owe an
    /// answer.
    pub fn oldest(&self) -> Option<(Instant, Vec<usize>)> {
        let oldest = self.steps.front()?;
        let owing = |(rank, member): (usize, &Member)| (member.done < oldest.step).then_some(rank);
        Some((
            oldest.sent,
            self.members.iter().enumerate().filter_map(owing).collect(),
        ))
    }

    /// Tells every rank that the engine failed. `diverged` says that ranks differ.
    pub fn fail(&self, reason: &str, diverged: bool) {
        for link in self
            .members
            .iter()
            .filter_map(|member| member.link.as_ref())
        {
            link.fail(reason, diverged);
        }
    }

    fn broadcast(&self, send: impl Fn(&WorkerLink) -> Result<(), String>) -> Result<(), String> {
        send_to(self.members.iter().enumerate(), send)
    }
}

/// Sends a command to some ranks.
fn send_to<'a>(
    members: impl Iterator<Item = (usize, &'a Member)>,
    send: impl Fn(&WorkerLink) -> Result<(), String>,
) -> Result<(), String> {
    for (rank, member) in members {
        let link = member.link.as_ref();
        let link = link.ok_or_else(|| format!("rank {rank} is not attached"))?;
        send(link).map_err(|reason| format!("rank {rank}: {reason}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
