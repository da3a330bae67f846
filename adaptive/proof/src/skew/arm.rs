//! Ways to choose the depth of all DP ranks' next steps.

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Decider, DepthRange, Policies, Row, Tier};
use lockstep_planner::{PlanDepth, PlannerConfig, ReserveConfig};

use super::machine::Machine;

/// Depths that may be chosen.
pub const DEPTHS: [u32; 6] = [0, 1, 2, 3, 5, 7];
/// Of the first steps.
const INITIAL: u32 = 3;
/// Rows up to which steps are measured before serving.
const MEASURED_ROWS: u32 = 32;

/// How the depth is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// Always the same.
    Fixed(u32),
    /// As Lockstep does: everybody decides by the rows of all.
    Sums,
    /// Every DP rank decides by its own row, and the least counts.
    Least,
    /// And the most.
    Most,
    /// The first DP rank decides by its own row.
    First,
    /// By the rows of all, and requests draft less deep where their own past says so.
    Own,
}

/// One arm at work: real deciders, and the planner's rule for what a plan asks.
pub struct Chooser {
    arm: Arm,
    machine: Machine,
    dp_size: usize,
    plan: PlanDepth,
    /// Who decides for all, and who for one DP rank.
    of_all: Option<Decider>,
    of_rank: Vec<Decider>,
}

impl Chooser {
    pub fn new(arm: Arm, machine: &Machine, dp_size: usize) -> Self {
        let mut chooser = Self {
            arm,
            machine: *machine,
            dp_size,
            plan: plan(arm),
            of_all: None,
            of_rank: Vec::new(),
        };
        chooser.restart();
        chooser
    }

    /// A new group: nothing is known but what is measured before serving.
    pub fn restart(&mut self) {
        self.plan.reset();
        let profile = self
            .machine
            .profile(self.dp_size, MEASURED_ROWS, &[0, 1, 2, 7]);
        let decider = || {
            let decider = Decider::new(&config(&self.machine), &Policies::builtin(), &profile);
            decider.expect("its policy is known")
        };
        self.of_all = matches!(self.arm, Arm::Sums | Arm::Own).then(decider);
        let alone = match self.arm {
            Arm::Least | Arm::Most => self.dp_size,
            Arm::First => 1,
            Arm::Fixed(_) | Arm::Sums | Arm::Own => 0,
        };
        self.of_rank = (0..alone).map(|_| decider()).collect();
    }

    /// The depth of the next step, in which so many rows decode.
    pub fn plan(&mut self, decodes: u32) -> u32 {
        self.plan.begin(|| decodes);
        self.plan.steps()
    }

    /// That step has begun with these rows: what holds for the second one after it.
    pub fn decide(&mut self, rows: &[Row]) {
        let Some(step) = rows.first().map(|row| row.step) else {
            return;
        };
        self.plan
            .launch(|| rows.iter().map(|row| row.decodes).sum());
        let free = DepthRange::default();
        let mut decided = None;
        if let Some(decider) = &mut self.of_all {
            decider.begin();
            decided = Some(decider.decide(rows, free));
        }
        for (rank, decider) in self.of_rank.iter_mut().enumerate() {
            let row = rows[rank];
            decider.begin();
            let vote = decider.decide(&[row], free);
            // Who has nothing to do has no vote.
            if row.decodes == 0 {
                continue;
            }
            decided = match (self.arm, decided) {
                (Arm::Least, Some(other)) => Some(vote.min(other)),
                (Arm::Most, Some(other)) => Some(vote.max(other)),
                _ => Some(vote),
            };
        }
        if let Some(depth) = decided {
            self.plan.decide(step, depth);
        }
    }
}

fn plan(arm: Arm) -> PlanDepth {
    let initial_depth = match arm {
        Arm::Fixed(depth) => depth,
        _ => INITIAL,
    };
    PlanDepth::new(&PlannerConfig {
        initial_depth,
        reserve: ReserveConfig {
            steps: DEPTHS[DEPTHS.len() - 1],
            ..ReserveConfig::none()
        },
        adapts: !matches!(arm, Arm::Fixed(_)),
        ..PlannerConfig::default()
    })
}

fn config(machine: &Machine) -> AdaptiveConfig {
    let tier = |depth| Tier {
        depth,
        tokens: depth + 1,
    };
    let slots = vec![BatchSlot::new(1, DEPTHS.to_vec())];
    AdaptiveConfig {
        shared_part: machine.shared_part(),
        ..AdaptiveConfig::new("goodput", INITIAL, DEPTHS.map(tier).to_vec(), slots)
    }
}
