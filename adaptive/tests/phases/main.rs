//! Policies against fixed depths and an oracle, on machines and texts that are
//! made up: closed loop, equal work, ranks that agree two steps ahead, noisy times.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arm;
mod world;

use arm::{Arm, DEPTHS, Outcome, Phase, run};
use world::{DENSE, HEAD, Machine, STANDALONE, TINY, Text};

const fn phase(text: Text, streams: usize, requests: u32, tokens: (u32, u32)) -> Phase {
    Phase {
        text,
        streams,
        requests,
        tokens,
    }
}

/// Predictable and hard texts, few and many streams, and a tail.
const NINE: [Phase; 9] = [
    phase(Text::Predictable, 1, 4, (200, 300)),
    phase(Text::Hard, 1, 2, (120, 160)),
    phase(Text::Code, 4, 16, (120, 200)),
    phase(Text::Mixed, 4, 16, (120, 200)),
    phase(Text::Predictable, 8, 40, (150, 200)),
    phase(Text::Hard, 16, 40, (100, 160)),
    phase(Text::Mixed, 32, 96, (80, 160)),
    phase(Text::Mixed, 32, 96, (80, 160)),
    phase(Text::Mixed, 32, 32, (20, 400)),
];

/// Predictable texts one by one, and mixed ones in a crowd, twice.
const TWO: [Phase; 4] = [
    phase(Text::Predictable, 1, 4, (200, 300)),
    phase(Text::Mixed, 32, 96, (80, 160)),
    phase(Text::Predictable, 1, 4, (200, 300)),
    phase(Text::Mixed, 32, 96, (80, 160)),
];

const MACHINES: [Machine; 4] = [STANDALONE, HEAD, DENSE, TINY];

/// `a` over `b`, in thousandths.
fn permille(a: u64, b: u64) -> u64 {
    a * 1000 / b
}

/// All arms over one list.
struct Table {
    fixed: Vec<Outcome>,
    oracle: Outcome,
}

impl Table {
    fn new(machine: &Machine, phases: &[Phase], seed: u64) -> Self {
        let fixed = DEPTHS.map(|depth| run(machine, phases, Arm::Fixed(depth), seed));
        Self {
            fixed: fixed.to_vec(),
            oracle: run(machine, phases, Arm::Oracle, seed),
        }
    }

    fn best_fixed(&self) -> u64 {
        self.fixed.iter().map(Outcome::us).min().unwrap()
    }

    /// The best fixed depth of every phase.
    fn best_by_phase(&self) -> Vec<u64> {
        let phases = 0..self.oracle.phase_us.len();
        let best = |at: usize| self.fixed.iter().map(|arm| arm.phase_us[at]).min().unwrap();
        phases.map(best).collect()
    }

    /// A line for people: speed against the best fixed depth, the best by phase,
    /// the oracle, the worst phase against its best; switches a minute.
    fn line(&self, name: &str, arm: &Outcome) -> String {
        let best = self.best_by_phase();
        let phases = best.iter().zip(&arm.phase_us);
        let phases: Vec<_> = phases.map(|(best, us)| permille(*best, *us)).collect();
        format!(
            "{name:>16} | best fixed {} | by phase {} | oracle {} | worst {} | {}/min | {phases:?}",
            permille(self.best_fixed(), arm.us()),
            permille(best.iter().sum(), arm.us()),
            permille(self.oracle.us(), arm.us()),
            phases.iter().min().unwrap(),
            arm.switches_a_minute(),
        )
    }
}

#[test]
fn goodput_beats_the_best_fixed_depth_and_is_close_to_the_oracle() {
    for (list, phases) in [("nine", &NINE[..]), ("two", &TWO)] {
        for machine in MACHINES {
            for seed in [1, 2] {
                let table = Table::new(&machine, phases, seed);
                println!(
                    "{list} {} {seed}: {} steps",
                    machine.name, table.oracle.steps
                );
                println!("{}", table.line("oracle", &table.oracle));
                for name in ["ema", "throughput_aware", "goodput"] {
                    let arm = run(&machine, phases, Arm::Policy(name), seed);
                    let line = table.line(name, &arm);
                    println!("{line}");
                    if name == "goodput" {
                        assert!(arm.us() <= table.best_fixed(), "{line}");
                        assert!(permille(table.oracle.us(), arm.us()) >= 960, "{line}");
                    }
                }
            }
        }
    }
}
