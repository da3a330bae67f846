//! The exchanges of a step, in their order, and the ranks that wait in them.

use super::{Action, DP_RANKS, Fault, GROUP, Load, Plan, RANKS, State};

/// An exchange of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Exchange {
    /// Exchange of drafts, inside a DP rank.
    Drafts,
    /// Exchange of the rows of all ranks.
    Opening,
    /// Exchanges of a layer (one layer stands for all): rows to all ranks, and their products
    /// back.
    Gather,
    Scatter,
    /// Exchange of the rows whose logits are wanted.
    Head,
    /// Exchange of verified tokens, inside a DP rank.
    Outcomes,
}

/// Place of a rank in its step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// Between two steps.
    #[default]
    Between,
    /// In an exchange of its step.
    Waits(Exchange),
    /// The rank crashed, or gave up.
    Gone,
}

/// Members of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    World,
    Group(usize),
}

impl Among {
    pub fn has(self, rank: usize) -> bool {
        match self {
            Self::World => true,
            Self::Group(group) => GROUP[rank] == group,
        }
    }

    pub fn members(self) -> impl Iterator<Item = usize> {
        (0..RANKS).filter(move |rank| self.has(*rank))
    }
}

impl Exchange {
    const ALL: [Self; 6] = [
        Self::Drafts,
        Self::Opening,
        Self::Gather,
        Self::Scatter,
        Self::Head,
        Self::Outcomes,
    ];

    pub fn among(self, rank: usize) -> Among {
        match self {
            Self::Drafts | Self::Outcomes => Among::Group(GROUP[rank]),
            _ => Among::World,
        }
    }

    /// Returns the exchange after `last` on a rank. An exchange is left out only by facts that
    /// all its members know alike: their DP rank's part of the plan, or all rows.
    pub fn after(
        last: Option<Self>,
        rank: usize,
        plan: &Plan,
        fault: Option<Fault>,
    ) -> Option<Self> {
        let group = GROUP[rank];
        let shared = (0..RANKS).any(|other| other != rank && GROUP[other] == group);
        let idle = plan.loads[group].is_idle();
        let tokens = !plan.loads.iter().all(|load| load.is_idle());
        let wanted = plan.loads.iter().any(|load| load.rows() > 0);
        let runs = |exchange: Self| match exchange {
            Self::Drafts => shared && plan.depth > 0 && plan.decodes[group] > 0,
            Self::Opening => !(idle && fault == Some(Fault::IdleSkipsOpening)),
            Self::Gather | Self::Scatter => tokens,
            Self::Head => wanted,
            Self::Outcomes => shared && plan.loads[group].rows() > 0,
        };
        Self::ALL
            .into_iter()
            .find(|exchange| Some(*exchange) > last && runs(*exchange))
    }
}

impl State {
    /// Lists the exchanges to which all members have come.
    pub fn meetings(&self, actions: &mut Vec<Action>) {
        let groups = (0..DP_RANKS).map(Among::Group);
        for among in groups.chain([Among::World]) {
            let waits = |rank: usize| match self.ranks[rank].place {
                Place::Waits(exchange) => {
                    (exchange.among(rank) == among).then_some((self.ranks[rank].step, exchange))
                }
                _ => None,
            };
            let mut members = among.members().map(waits);
            let Some(Some(first)) = members.next() else {
                continue;
            };
            if !members.all(|other| other == Some(first)) {
                continue;
            }
            let plan = self.plan_of(first.0);
            let verifies = first.1 == Exchange::Head && plan.depth > 0;
            let drafted = plan.decodes.map(|rows| verifies && rows > 0);
            for bits in 0..1 << DP_RANKS {
                let accepted: [bool; DP_RANKS] = std::array::from_fn(|at| bits & (1 << at) != 0);
                if (0..DP_RANKS).all(|group| drafted[group] || !accepted[group]) {
                    actions.push(Action::Meet(among, accepted));
                }
            }
        }
    }

    /// Checks that no two ranks wait for each other in different exchanges.
    pub fn check_exchanges(&self) -> Result<(), String> {
        let place = |rank: usize| match self.ranks[rank].place {
            Place::Waits(exchange) => Some((self.ranks[rank].step, exchange)),
            _ => None,
        };
        for one in 0..RANKS {
            for other in 0..one {
                let (Some(first), Some(second)) = (place(one), place(other)) else {
                    continue;
                };
                let same = first.1.among(one) == second.1.among(other);
                if same && first != second {
                    return Err(format!(
                        "rank {one} waits in {:?} of step {} and rank {other} in {:?} of step {}",
                        first.1, first.0, second.1, second.0
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the plan of a step that is not completed.
    pub fn plan_of(&self, step: u8) -> Plan {
        self.plans[usize::from(step - self.completed) - 1]
    }
}

impl Load {
    /// Returns the number of rows in `now` that were in `before` already.
    pub fn stayed(before: Self, now: Self) -> u8 {
        before.rows().min(now.rows())
    }
}
