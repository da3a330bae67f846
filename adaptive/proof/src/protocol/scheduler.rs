//! Actions of the scheduler, of its operator and of the launcher.

use lockstep_adaptive::DepthRange;

use super::{
    Action, CROWD, DP_RANKS, Fault, Load, MOST_STEPS, OVERLAP, Place, Plan, Protocol, RESTARTED,
    State,
};

impl Protocol {
    pub fn scheduler_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_gone = |place: Place| place == Place::Gone;
        if state.closing {
            let all_gone = state.ranks.iter().all(|rank| is_gone(rank.place));
            if all_gone && !state.is_over() {
                actions.push(Action::Restart);
            }
            return;
        }
        if state.ranks.iter().any(|rank| is_gone(rank.place)) {
            actions.push(Action::Close);
        }
        let planned = state.completed + state.plans.len() as u8;
        if planned < state.limit && state.plans.len() < usize::from(self.setup.in_flight) {
            for first in &self.setup.loads {
                let both = self.setup.loads.iter().map(|second| [*first, *second]);
                actions.extend(both.map(Action::Plan));
            }
        }
        if state.ranges > 0 && planned < state.limit {
            let allowed = self.setup.allowed.iter();
            actions.extend(allowed.map(|range| Action::Allow(*range)));
        }
    }

    pub fn plan(&self, state: &mut State, loads: [Load; DP_RANKS]) -> u32 {
        let decodes: [u8; DP_RANKS] =
            std::array::from_fn(|at| Load::stayed(state.loads[at], loads[at]));
        let sum = |rows: [u8; DP_RANKS]| rows.into_iter().map(u32::from).sum::<u32>();
        let agreed = state.depth.clone();
        state.depth.begin(|| sum(decodes));
        let (depth, range) = state.depth.launch(|| sum(loads.map(Load::rows)));
        let mut depth = depth as u8;
        if self.setup.fault == Some(Fault::PlanExceeds) {
            depth = (depth + 1).min(2);
        }
        // Without decode rows the rule gives the agreed depth.
        let mut agreed = agreed;
        agreed.begin(|| 0);
        let crowd = u32::from(depth) < agreed.steps();
        state.plans.push(Plan {
            depth,
            range,
            loads,
            decodes,
        });
        state.loads = loads;
        let overlap = if state.plans.len() > 1 { OVERLAP } else { 0 };
        overlap | if crowd { CROWD } else { 0 }
    }

    /// Takes a rank's answer. With the last rank's answer the step is completed, and the
    /// scheduler knows the decided depth.
    pub fn answer(&self, state: &mut State, rank: usize) -> u32 {
        state.ranks[rank].answered += 1;
        let step = state.completed + 1;
        if state.ranks.iter().any(|rank| rank.answered < step) {
            return 0;
        }
        let early = u64::from(self.setup.fault == Some(Fault::EarlyInScheduler));
        if let Some(depth) = state.decided[usize::from(step)] {
            state.depth.decide(u64::from(step) - early, depth.into());
        }
        state.plans.remove(0);
        state.completed = step;
        // Decisions that only earlier steps needed are forgotten.
        state.decided[..usize::from(step).saturating_sub(1)].fill(None);
        0
    }

    pub fn restart(&self, state: &mut State) -> u32 {
        state.depth.reset();
        state.completed = 0;
        state.plans.clear();
        state.loads = [Load::Rows(0); DP_RANKS];
        state.limit = self.setup.steps_again;
        state.ranks = self.fresh();
        state.decided = [None; MOST_STEPS + 1];
        state.closing = false;
        state.restarted = true;
        RESTARTED
    }
}

impl State {
    pub fn allow(&mut self, range: DepthRange) -> u32 {
        self.ranges -= 1;
        self.depth.set_range(range);
        0
    }

    pub fn close(&mut self) -> u32 {
        self.closing = true;
        0
    }

    /// Returns true if all ranks are gone and no new group will start.
    pub fn is_over(&self) -> bool {
        let gone = self.ranks.iter().all(|rank| rank.place == Place::Gone);
        gone && self.closing && self.restarted
    }
}
