//! A rank's way through a step.

use lockstep_adaptive::DepthRange;

use super::{
    ALLOWED, AT_0, AT_2, Action, Among, DEPTHS, DP_RANKS, Exchange, Fault, GROUP, NOTHING_RUNS,
    PEERS_LEFT, Place, Plan, Protocol, RANKS, SWITCH_WHILE_IDLE, Shown, State,
    deciders::{Brought, Deciders, depths},
    leads,
};

/// State of a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Rank {
    pub place: Place,
    /// Number of the newest step that it took.
    pub step: u8,
    /// Number of steps whose answers have reached the scheduler.
    pub answered: u8,
    /// Number of its decider.
    pub decider: u32,
    /// Statistics of its last step, if it is the lead of its DP rank.
    shown: Shown,
}

impl Rank {
    /// Returns the number of steps that it has finished.
    pub fn finished(&self) -> u8 {
        self.step - u8::from(matches!(self.place, Place::Waits(_)))
    }
}

/// The rank that makes the mistakes of one rank.
const WRONG: usize = 1;

impl State {
    /// Lists the events of one rank.
    pub fn rank_actions(&self, rank: usize, actions: &mut Vec<Action>) {
        let this = &self.ranks[rank];
        if this.place == Place::Gone {
            return;
        }
        let planned = self.completed + self.plans.len() as u8;
        if this.place == Place::Between && this.step < planned && !self.closing {
            actions.push(Action::Take(rank));
        }
        if this.answered < this.finished() && !self.closing {
            actions.push(Action::Answer(rank));
        }
        if self.crashes > 0 && !self.closing {
            actions.push(Action::Crash(rank));
        }
        let peer_is_gone = match this.place {
            Place::Waits(exchange) => {
                let mut members = exchange.among(rank).members();
                members.any(|peer| self.ranks[peer].place == Place::Gone)
            }
            _ => false,
        };
        if peer_is_gone || self.closing && this.place == Place::Between {
            actions.push(Action::GiveUp(rank));
        }
    }

    pub fn crash(&mut self, rank: usize) -> u32 {
        self.crashes -= 1;
        self.ranks[rank].place = Place::Gone;
        let mut peers = self.ranks.iter();
        match peers.any(|peer| matches!(peer.place, Place::Waits(_))) {
            true => PEERS_LEFT,
            false => 0,
        }
    }

    pub fn give_up(&mut self, rank: usize) -> u32 {
        self.ranks[rank].place = Place::Gone;
        0
    }

    /// Returns the agreed depth of a step, from the decisions for it.
    fn agreed(&self, step: u8, initial: u8) -> u8 {
        let from = usize::from(step).checked_sub(2).filter(|from| *from > 0);
        from.and_then(|from| self.decided[from]).unwrap_or(initial)
    }
}

impl Protocol {
    /// A rank takes its next plan.
    pub fn take(&self, state: &mut State, rank: usize) -> Result<u32, String> {
        let step = state.ranks[rank].step + 1;
        let plan = state.plan_of(step);
        let agreed = self.deciders.borrow().depth(state.ranks[rank].decider);
        let decided = state.agreed(step, self.setup.initial);
        if agreed != decided {
            return Err(format!(
                "rank {rank} takes depth {agreed} for agreed in step {step}, where {decided} was decided"
            ));
        }
        if plan.depth > agreed {
            return Err(format!(
                "the plan of step {step} asks for depth {}, and {agreed} was agreed",
                plan.depth
            ));
        }
        if depths(self.setup.lacks, rank) & (1 << plan.depth) == 0 {
            return Err(format!(
                "rank {rank} runs depth {}, which it can't",
                plan.depth
            ));
        }
        let this = &mut state.ranks[rank];
        this.step = step;
        this.enter(rank, None, &plan, self.setup.fault);
        Ok(sights(state, step, &plan))
    }

    /// Lets all members of an exchange, who have come to it, go on behind it.
    pub fn meet(
        &self,
        state: &mut State,
        among: Among,
        accepted: [bool; DP_RANKS],
    ) -> Result<u32, String> {
        let Some(first) = among.members().next() else {
            return Ok(0);
        };
        let (step, Place::Waits(exchange)) = (state.ranks[first].step, state.ranks[first].place)
        else {
            return Ok(0);
        };
        let plan = state.plan_of(step);
        let mut seen = 0;
        if exchange == Exchange::Opening {
            seen |= self.decide(state, step, &plan)?;
        }
        for rank in among.members() {
            let group = GROUP[rank];
            let this = &mut state.ranks[rank];
            if exchange == Exchange::Head && leads(rank) {
                this.shown = shown(&plan, group, accepted[group]);
            }
            this.enter(rank, Some(exchange), &plan, self.setup.fault);
        }
        Ok(seen)
    }

    /// Lets every rank decide from all rows.
    fn decide(&self, state: &mut State, step: u8, plan: &Plan) -> Result<u32, String> {
        let mut deciders = self.deciders.borrow_mut();
        let mut shown = [Shown::Nothing; DP_RANKS];
        for rank in (0..RANKS).filter(|rank| leads(*rank)) {
            shown[GROUP[rank]] = std::mem::take(&mut state.ranks[rank].shown);
        }
        let brought = Brought {
            depth: plan.depth,
            rows: plan.loads.map(|load| load.rows()),
            shown,
            range: plan.range,
            early: false,
            alone: None,
        };
        for rank in 0..RANKS {
            let mut own = brought;
            let at = state.ranks[rank].decider;
            match self.setup.fault {
                Some(Fault::EarlyOnOneRank) if rank == WRONG => own.early = true,
                Some(Fault::RangeIgnored) => own.range = DepthRange::default(),
                Some(Fault::MinimumOnOneRank) if rank == WRONG => {
                    own.range = least_vote(&mut deciders, at, &brought);
                }
                _ => {}
            }
            let after = deciders.decide(at, own);
            state.ranks[rank].decider = after;
            let depth = deciders.last(after);
            let first = *state.decided[usize::from(step)].get_or_insert(depth);
            if first != depth {
                return Err(format!(
                    "in step {step} rank {rank} decides depth {depth}, and others {first}"
                ));
            }
        }
        let depth = state.decided[usize::from(step)].map_or(0, u32::from);
        if !self.may_decide(depth, plan.range) {
            let DepthRange { least, most } = plan.range;
            return Err(format!(
                "in step {step} depth {depth} is decided, where an operator allows {least} to {most}"
            ));
        }
        let limited = plan.range != DepthRange::default();
        let seen = limited && plan.range.contains(depth);
        Ok(if seen { ALLOWED } else { 0 })
    }

    /// Returns true if an operator's range has this depth. If the range has no depth that all
    /// ranks can run, the next one below counts.
    fn may_decide(&self, depth: u32, range: DepthRange) -> bool {
        let lacks = self.setup.lacks;
        let all = (0..RANKS).fold(u32::MAX, |all, rank| all & depths(lacks, rank));
        let mut runnable = DEPTHS.into_iter().filter(|depth| all & (1 << depth) != 0);
        match runnable.clone().any(|depth| range.contains(depth)) {
            true => range.contains(depth) && runnable.any(|other| other == depth),
            false => runnable.rfind(|below| *below < range.least) == Some(depth),
        }
    }
}

impl Rank {
    /// Goes on to the exchange after `last`, or ends the step.
    fn enter(&mut self, rank: usize, last: Option<Exchange>, plan: &Plan, fault: Option<Fault>) {
        let next = Exchange::after(last, rank, plan, fault);
        self.place = next.map_or(Place::Between, Place::Waits);
    }
}

/// Returns the least of the depths that each DP rank alone would decide, as a range.
fn least_vote(deciders: &mut Deciders, at: u32, brought: &Brought) -> DepthRange {
    let mut least = u8::MAX;
    for group in 0..DP_RANKS {
        let mut alone = *brought;
        alone.alone = Some(group as u8);
        let after = deciders.decide(at, alone);
        least = least.min(deciders.last(after));
    }
    let least = least.into();
    DepthRange { least, most: least }
}

fn shown(plan: &Plan, group: usize, accepted: bool) -> Shown {
    match (plan.decodes[group], plan.depth) {
        (0, _) => Shown::Nothing,
        (_, 0) => Shown::Undrafted,
        (_, depth) => Shown::Drafted { depth, accepted },
    }
}

fn sights(state: &State, step: u8, plan: &Plan) -> u32 {
    let idle = plan.loads.iter().filter(|load| load.is_idle()).count();
    let mut seen = match plan.depth {
        0 => AT_0,
        2 => AT_2,
        _ => 0,
    };
    if idle == DP_RANKS {
        seen |= NOTHING_RUNS;
    }
    let before = usize::from(step - state.completed).checked_sub(2);
    let before = before.map(|before| state.plans[before].depth);
    let switches = before.is_some_and(|before| before != plan.depth);
    if switches && idle > 0 && idle < DP_RANKS {
        seen |= SWITCH_WHILE_IDLE;
    }
    seen
}
