//! The ranks: threads that run the same exchanges again and again.

use std::{thread, time::Instant};

use anyhow::Context as _;
use lockstep_backend::Groups;
use lockstep_collective::{
    Collective, CollectiveError, Options, Tcp, TcpListenerHandle, local_group_with,
};

use super::{
    Ranks, Transport,
    step::{KINDS, Step},
};
use crate::stats::Durations;

/// Durations of exchanges.
pub struct Took {
    /// Single exchanges on any rank, in the order of [`KINDS`].
    pub each: [Durations; KINDS.len()],
    /// All exchanges of a step together, on any rank.
    pub all: Durations,
}

/// Runs `steps` of every rank, after a tenth as many to warm up.
///
/// # Errors
/// Fails when ranks don't find each other.
pub fn run(
    ranks: Vec<Step>,
    transport: Transport,
    Ranks { tp_size, dp_size }: Ranks,
    steps: usize,
) -> anyhow::Result<Took> {
    let longest = ranks.iter().map(Step::longest).max().unwrap_or(0);
    let options = Options {
        max_elements: longest.max(Options::default().max_elements),
        ..Options::default()
    };
    let groups = connect(tp_size, transport, &options)?;
    let measured: Vec<_> = thread::scope(|scope| {
        let start = |(group, step)| scope.spawn(move || rank(group, dp_size, step, steps));
        let started: Vec<_> = groups.into_iter().zip(ranks).map(start).collect();
        started
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect()
    });
    let mut took = Took {
        each: Default::default(),
        all: Durations::default(),
    };
    for rank in measured {
        let own = rank.ok().context("a rank panicked")??;
        took.all.merge(&own.all);
        for (all, own) in took.each.iter_mut().zip(&own.each) {
            all.merge(own);
        }
    }
    Ok(took)
}

/// A group of `size` ranks.
fn connect(
    size: usize,
    transport: Transport,
    options: &Options,
) -> anyhow::Result<Vec<Box<dyn Collective>>> {
    let boxed = |member| Box::new(member) as Box<dyn Collective>;
    if transport == Transport::SharedMemory {
        let members = local_group_with(size, options).into_iter();
        return Ok(members.map(|member| Box::new(member) as _).collect());
    }
    let doors: Vec<_> = (0..size)
        .map(|_| Tcp::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    let addresses: Vec<_> = doors.iter().map(TcpListenerHandle::address).collect();
    let addresses = &addresses;
    thread::scope(|scope| {
        let join = |(rank, door): (usize, TcpListenerHandle)| {
            scope.spawn(move || door.connect_with(rank, addresses, "bench", b"bench", options))
        };
        let joining: Vec<_> = doors.into_iter().enumerate().map(join).collect();
        joining
            .into_iter()
            .map(|rank| Ok(boxed(rank.join().ok().context("a rank panicked")??)))
            .collect()
    })
}

fn rank(
    group: Box<dyn Collective>,
    dp_size: usize,
    mut step: Step,
    steps: usize,
) -> Result<Took, CollectiveError> {
    let mut groups = Groups::form(group, dp_size)?;
    let mut took = Took {
        each: Default::default(),
        all: Durations::default(),
    };
    let warm_up = steps.div_ceil(10);
    for number in 0..warm_up + steps {
        let begun = Instant::now();
        let mut last = begun;
        step.run(&mut groups, |kind| {
            let spent = last.elapsed();
            if number >= warm_up {
                took.each[kind as usize].record(spent);
            }
            last = Instant::now();
        })?;
        if number >= warm_up {
            took.all.record(begun.elapsed());
        }
    }
    Ok(took)
}
