//! Simulator of many DP ranks with uneven loads, on the deciders that serve. It compares one
//! depth for all by sums with votes, and with the best single depth of each phase.

mod arm;
mod cells;
mod group;
mod machine;
mod request;
mod table;
#[cfg(test)]
mod tests;

pub use table::markdown;

use arm::{Arm, Chooser, DEPTHS};
use cells::{Cell, all};
use group::{CHUNK, Group, Load};
use machine::{EAGLE3, H100, Machine, Part, STANDALONE};

/// Length of a phase, in steps without drafts.
const PHASE_STEPS: u64 = 1_000;
/// Number of failures of a group in a phase, if its cell fails.
const FAILURES: u64 = 2;

/// Returns the tokens of each phase under an arm.
pub fn run(machine: &Machine, cell: &Cell, arm: Arm, seed: u64) -> Vec<u64> {
    let dp_size = cell.phases.first().map_or(0, Vec::len);
    let mut group = Group::new(machine, dp_size, arm == Arm::Own, seed);
    let mut chooser = Chooser::new(arm, machine, dp_size);
    let mut rows = Vec::with_capacity(dp_size);
    let mut tokens = Vec::new();
    for phase in &cell.phases {
        group.load(phase.iter().copied());
        let length = PHASE_STEPS * step_us(machine, phase);
        let (mut us, mut out, mut failed) = (0, 0, 0);
        while us < length {
            if cell.fails && us * (FAILURES + 1) / length > failed {
                failed += 1;
                chooser.restart();
                group.restart();
            }
            let depth = chooser.plan(group.decodes());
            group.begin(depth, &mut rows);
            chooser.decide(&rows);
            let (more, took) = group.run(depth);
            out += more;
            us += took;
        }
        // The last step counts by the part that fits.
        tokens.push(out * length / us);
    }
    tokens
}

/// Returns the microseconds of a phase's step without drafts, with prompts if the phase is full
/// of them.
fn step_us(machine: &Machine, phase: &[Load]) -> u64 {
    let part = |load: &Load| Part {
        rows: load.streams,
        depth: 0,
        tokens: load.streams + if load.prompt > CHUNK { CHUNK } else { 0 },
        taken: load.streams,
    };
    let parts: Vec<_> = phase.iter().map(part).collect();
    machine.step_us(&parts).into_iter().map(u64::from).sum()
}

/// Results of a cell, in tokens of all its phases.
pub struct Outcome {
    /// The best single depth of each phase, and the tokens with these depths.
    pub best: Vec<u32>,
    pub oracle: u64,
    /// Tokens of each arm.
    pub arms: Vec<u64>,
}

/// Runs a cell under `arms`, and under every fixed depth.
pub fn outcome(machine: &Machine, cell: &Cell, arms: &[Arm], seed: u64) -> Outcome {
    let fixed = DEPTHS.map(|depth| run(machine, cell, Arm::Fixed(depth), seed));
    let (mut best, mut oracle) = (Vec::new(), 0);
    for phase in 0..cell.phases.len() {
        let of_depth = fixed.iter().zip(DEPTHS);
        let most = of_depth.max_by_key(|(tokens, _)| tokens[phase]);
        if let Some((tokens, depth)) = most {
            best.push(depth);
            oracle += tokens[phase];
        }
    }
    let arms = arms.iter().map(|arm| run(machine, cell, *arm, seed));
    Outcome {
        best,
        oracle,
        arms: arms.map(|tokens| tokens.into_iter().sum()).collect(),
    }
}
