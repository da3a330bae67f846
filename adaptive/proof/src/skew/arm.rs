//! Arms: ways to choose the depth of all DP ranks' next steps.

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Decider, DepthRange, Policies, Row, Tier};
use lockstep_planner::{PlanDepth, PlannerConfig, ReserveConfig};

use super::machine::Machine;

/// Depths that may be chosen.
pub const DEPTHS: [u32; 6] = [0, 1, 2, 3, 5, 7];
/// Depth of the first steps.
const INITIAL: u32 = 3;
/// Most rows of the steps that are measured before serving.
const MEASURED_ROWS: u32 = 32;

/// Way in which the depth is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// One fixed depth.
    Fixed(u32),
    /// Lockstep's way: all ranks decide from the rows of all.
    Sums,
    /// Every DP rank decides from its own row, and the least depth counts.
    Least,
    /// Every DP rank decides from its own row, and the greatest depth counts.
    Most,
    /// The first DP rank decides from its own row.
    First,
    /// All ranks decide from the rows of all, and a request drafts less deep if its own past
    /// says so.
    Own,
}

/// One arm at work: real deciders, and the planner's rule for the depth of a plan.
pub struct Chooser {
    arm: Arm,
    machine: Machine,
    dp_size: usize,
    plan: PlanDepth,
    /// The decider for all DP ranks, or one for each DP rank that votes.
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

    /// Begins a new group, which knows only the steps measured before serving.
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

    /// Returns the depth of the next step, in which `decodes` rows decode.
    pub fn plan(&mut self, decodes: u32) -> u32 {
        self.plan.begin(|| decodes);
        self.plan.steps()
    }

    /// Begins that step with these rows, and decides the depth of the second step after it.
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
            // A DP rank that has nothing to do has no vote.
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
