//! Model of a step's agreement on a depth, between the scheduler and three ranks.
//!
//! The depth that a plan asks for comes from the planner's own rule ([`PlanDepth`]), and
//! decisions come from real deciders. The exchanges of a step are modelled, with the ranks that
//! wait for each other in them. Plans and answers take any time to arrive.
//!
//! Ranks 0 and 1 share a DP rank, and rank 2 is a DP rank of its own. No server groups its
//! ranks unevenly, but so one model of three ranks has both kinds.

use std::cell::RefCell;

use lockstep_adaptive::DepthRange;
use lockstep_planner::{PlanDepth, PlannerConfig, ReserveConfig};

mod deciders;
mod exchanges;
mod rank;
mod scheduler;
mod setups;
#[cfg(test)]
mod tests;

use crate::explore::Model;
use deciders::{Deciders, Shown};
use exchanges::{Among, Exchange, Place};
use rank::Rank;

/// Number of ranks, and number of DP ranks.
pub const RANKS: usize = 3;
pub const DP_RANKS: usize = 2;
/// The DP rank of each rank.
pub const GROUP: [usize; RANKS] = [0, 0, 1];
/// Depths that can be chosen.
pub const DEPTHS: [u32; 3] = [0, 1, 2];
/// Most steps of all groups together.
pub const MOST_STEPS: usize = 8;

/// Returns true if a rank drafts and verifies for its DP rank.
pub fn leads(rank: usize) -> bool {
    (0..rank).all(|other| GROUP[other] != GROUP[rank])
}

/// A depth that one rank has failed to make ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lacks {
    pub rank: usize,
    pub depth: u8,
}

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// One rank takes the least of the depths that each DP rank alone would have decided.
    MinimumOnOneRank,
    /// A rank without rows skips the opening exchange.
    IdleSkipsOpening,
    /// One rank applies decisions a step early.
    EarlyOnOneRank,
    /// The scheduler applies decisions a step early.
    EarlyInScheduler,
    /// A plan asks for more than was agreed.
    PlanExceeds,
    /// All ranks decide as if an operator allowed every depth.
    RangeIgnored,
}

/// A setup to explore.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Draft steps of the first steps.
    pub initial: u8,
    /// Steps of the first group, and of the one after a restart.
    pub steps: u8,
    pub steps_again: u8,
    /// Steps in flight at once.
    pub in_flight: u8,
    /// Loads that a DP rank may have in a step.
    pub loads: Vec<Load>,
    /// Times that an operator sets a range, and the ranges.
    pub ranges: u8,
    pub allowed: Vec<DepthRange>,
    /// Number of ranks that crash.
    pub crashes: u8,
    pub lacks: Option<Lacks>,
    pub fault: Option<Fault>,
}

/// Load of a DP rank in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Load {
    /// A number of rows; 0 = the DP rank is idle. With fewer rows than before, requests have
    /// ended or were aborted.
    Rows(u8),
    /// A piece of a prompt, without wanted logits.
    Prompt,
}

impl Load {
    fn rows(self) -> u8 {
        match self {
            Self::Rows(rows) => rows,
            Self::Prompt => 0,
        }
    }

    fn is_idle(self) -> bool {
        self == Self::Rows(0)
    }
}

/// A plan that the scheduler sends to all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    pub depth: u8,
    pub range: DepthRange,
    pub loads: [Load; DP_RANKS],
    /// By DP rank: rows that decode in the step, because they were there before.
    pub decodes: [u8; DP_RANKS],
}

/// State of the scheduler, all ranks and the messages between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    depth: PlanDepth,
    /// Number of steps that all ranks have answered.
    completed: u8,
    /// Plans of the steps after those.
    plans: Vec<Plan>,
    /// Loads in the step planned last.
    loads: [Load; DP_RANKS],
    limit: u8,
    ranges: u8,
    ranks: [Rank; RANKS],
    /// Depth decided in each step from the last completed one on, by the rank that decided
    /// first. Only the checks use it.
    decided: [Option<u8>; MOST_STEPS + 1],
    crashes: u8,
    /// True if the scheduler has seen that a rank is gone.
    closing: bool,
    restarted: bool,
}

/// An event that can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The scheduler plans a step.
    Plan([Load; DP_RANKS]),
    /// A plan reaches a rank that has finished the step before.
    Take(usize),
    /// All members of an exchange have come to it. If drafts are verified after it, the flags
    /// say for each DP rank if its drafts are accepted.
    Meet(Among, [bool; DP_RANKS]),
    /// A rank's oldest answer reaches the scheduler.
    Answer(usize),
    /// An operator allows other depths.
    Allow(DepthRange),
    /// A rank crashes.
    Crash(usize),
    /// The scheduler sees that a rank is gone.
    Close,
    /// A rank sees that another is gone, in the exchange where it waits or from the scheduler.
    GiveUp(usize),
    /// The launcher starts a new group.
    Restart,
}

/// A setup, and the deciders that have come up so far.
#[derive(Debug)]
pub struct Protocol {
    setup: Setup,
    deciders: RefCell<Deciders>,
}

impl Protocol {
    pub fn new(setup: Setup) -> Self {
        Self {
            deciders: RefCell::new(Deciders::new(setup.initial, setup.lacks)),
            setup,
        }
    }

    fn fresh(&self) -> [Rank; RANKS] {
        [Rank::default(); RANKS]
    }
}

/// Bits of [`Model::SIGHTS`].
const SWITCH_WHILE_IDLE: u32 = 1;
const CROWD: u32 = 1 << 1;
const ALLOWED: u32 = 1 << 2;
const OVERLAP: u32 = 1 << 3;
const NOTHING_RUNS: u32 = 1 << 4;
const AT_0: u32 = 1 << 5;
const AT_2: u32 = 1 << 6;
const PEERS_LEFT: u32 = 1 << 7;
const RESTARTED: u32 = 1 << 8;

impl Model for Protocol {
    type State = State;
    type Action = Action;

    const SIGHTS: &'static [&'static str] = &[
        "the depth changes while a DP rank is idle",
        "a crowd is met, and nothing drafted",
        "a depth is decided within an operator's range",
        "two steps are in flight",
        "nobody has tokens",
        "a step drafts nothing",
        "a step drafts at the deepest",
        "a rank crashes while its peers wait in an exchange",
        "a new group begins",
    ];

    fn initial(&self) -> State {
        let config = PlannerConfig {
            initial_depth: self.setup.initial.into(),
            reserve: ReserveConfig {
                steps: 2,
                ..ReserveConfig::none()
            },
            adapts: true,
            ..PlannerConfig::default()
        };
        State {
            depth: PlanDepth::new(&config),
            completed: 0,
            plans: Vec::new(),
            loads: [Load::Rows(0); DP_RANKS],
            limit: self.setup.steps,
            ranges: self.setup.ranges,
            ranks: self.fresh(),
            decided: [None; MOST_STEPS + 1],
            crashes: self.setup.crashes,
            closing: false,
            restarted: false,
        }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.scheduler_actions(state, actions);
        for rank in 0..RANKS {
            state.rank_actions(rank, actions);
        }
        state.meetings(actions);
    }

    fn next(&self, state: &State, action: Action) -> Result<(State, u32), String> {
        let mut next = state.clone();
        let seen = match action {
            Action::Plan(loads) => self.plan(&mut next, loads),
            Action::Allow(range) => next.allow(range),
            Action::Answer(rank) => self.answer(&mut next, rank),
            Action::Close => next.close(),
            Action::Restart => self.restart(&mut next),
            Action::Take(rank) => self.take(&mut next, rank)?,
            Action::Meet(among, accepted) => self.meet(&mut next, among, accepted)?,
            Action::Crash(rank) => next.crash(rank),
            Action::GiveUp(rank) => next.give_up(rank),
        };
        next.check_exchanges()?;
        Ok((next, seen))
    }

    fn is_end(&self, state: &State) -> bool {
        let all_done = state.completed == state.limit
            && !state.closing
            && state.ranks.iter().all(|rank| rank.place == Place::Between);
        all_done || state.is_over()
    }
}
