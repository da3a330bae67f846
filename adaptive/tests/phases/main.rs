//! Policies against fixed depths and an oracle, on made-up machines and texts. There is a
//! closed loop, equal work, an agreement two steps ahead, and noisy times.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and its tables are worth a look with --nocapture"
)]

mod arm;
mod world;

use arm::{Arm, DEPTHS, Outcome, Phase, run};
use world::{
    CROWDED, DEMO, DEMO_IN_CACHE, DENSE, GPU, GPU_TOGETHER, GROWING, HEAD, MISJUDGED, Machine,
    NGRAM, STANDALONE, TINY, Text, UNMEASURED, hash,
};

const fn phase(text: Text, streams: usize, requests: u32, tokens: (u32, u32)) -> Phase {
    Phase {
        text,
        streams,
        requests,
        tokens,
    }
}

/// Predictable and hard texts, few and many streams, and at last a tail.
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

/// Predictable texts one by one, and mixed texts in a crowd, twice.
const TWO: [Phase; 4] = [
    phase(Text::Predictable, 1, 4, (200, 300)),
    phase(Text::Mixed, 32, 96, (80, 160)),
    phase(Text::Predictable, 1, 4, (200, 300)),
    phase(Text::Mixed, 32, 96, (80, 160)),
];

/// `a` over `b`, in thousandths.
fn permille(a: u64, b: u64) -> u64 {
    a * 1000 / b
}

/// Results of all arms over one list of phases.
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

    /// Returns the time of the best fixed depth in every phase.
    fn best_by_phase(&self) -> Vec<u64> {
        let phases = 0..self.oracle.phase_us.len();
        let best = |at: usize| self.fixed.iter().map(|arm| arm.phase_us[at]).min().unwrap();
        phases.map(best).collect()
    }

    /// Returns a line for people. It has the speed against the best fixed depth, against the
    /// best by phase and against the oracle, the worst phase against its best, and switches per
    /// minute.
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

/// Runs `goodput` over a list. Returns its results and a line about them.
fn goodput(machine: &Machine, phases: &[Phase], seed: u64) -> (Table, Outcome, String) {
    let table = Table::new(machine, phases, seed);
    let arm = run(machine, phases, Arm::Policy("goodput"), seed);
    let line = format!("{} {seed} {}", machine.name, table.line("goodput", &arm));
    println!("{line}");
    (table, arm, line)
}

#[test]
fn goodput_beats_every_fixed_depth_and_is_close_to_the_oracle() {
    // The least speed over the best fixed depth, of nine phases and of two regimes.
    let least = [
        (STANDALONE, 1120, 1320),
        (HEAD, 1120, 1320),
        (DENSE, 1100, 1270),
        (TINY, 985, 1000),
    ];
    for (machine, nine, two) in least {
        for (phases, least) in [(&NINE[..], nine), (&TWO, two)] {
            for seed in 1..4 {
                let (table, arm, line) = goodput(&machine, phases, seed);
                println!("{}", table.line("oracle", &table.oracle));
                assert!(permille(table.best_fixed(), arm.us()) >= least, "{line}");
                assert!(permille(table.oracle.us(), arm.us()) >= 960, "{line}");
                let by_phase = table.best_by_phase();
                assert!(permille(by_phase.iter().sum(), arm.us()) >= 960, "{line}");
                for (best, us) in by_phase.iter().zip(&arm.phase_us) {
                    assert!(permille(*best, *us) >= 900, "{line}");
                }
                // Steps of the tiny model are too short for few switches a minute.
                let few = arm.switches_a_minute() <= 60 || machine.name == TINY.name;
                assert!(few, "{line}");
                for other in ["ema", "throughput_aware"] {
                    let other = run(&machine, phases, Arm::Policy(other), seed);
                    assert!(other.us() > arm.us(), "{line}");
                }
            }
        }
    }
}

/// A device drafts without the host, so the host's clock gives wrong times of passes. The
/// device's clock tells drafting apart.
#[test]
fn drafting_that_is_told_apart_finds_better_depths() {
    for seed in 1..4 {
        let [apart, together] = [GPU, GPU_TOGETHER].map(|machine| goodput(&machine, &NINE, seed));
        for (table, arm, line) in [&apart, &goodput(&GPU, &TWO, seed)] {
            assert!(permille(table.best_fixed(), arm.us()) >= 1030, "{line}");
            assert!(permille(table.oracle.us(), arm.us()) >= 955, "{line}");
        }
        assert!(apart.1.us() < together.1.us(), "{} {}", apart.2, together.2);
        let hard = |(_, arm, _): &(Table, Outcome, String)| arm.phase_us[1];
        assert!(
            hard(&apart) * 9 < hard(&together) * 8,
            "{} {}",
            apart.2,
            together.2
        );
    }
}

#[test]
fn constant_load_is_served_nearly_as_fast_as_at_its_best_depth() {
    for machine in [STANDALONE, HEAD, DENSE, TINY] {
        for text in [Text::Predictable, Text::Code, Text::Hard] {
            for (streams, requests) in [(1, 24), (4, 64), (8, 128), (32, 256)] {
                let list = [phase(text, streams, requests, (150, 250))];
                let (table, arm, line) = goodput(&machine, &list, 1);
                assert!(
                    permille(table.best_fixed(), arm.us()) >= 970,
                    "{streams} {line}"
                );
            }
        }
    }
}

#[test]
fn bursts_that_last_for_hundreds_of_steps_mislead_nobody() {
    let mut slowest = Vec::new();
    for text in [Text::Predictable, Text::Code, Text::Hard] {
        for (streams, requests) in [(1, 240), (8, 960), (32, 1920)] {
            // If answers are short, most steps carry prompts, and few steps are judged.
            for (requests, tokens) in [(requests, (150, 250)), (6 * requests, (12, 36))] {
                let list = [phase(text, streams, requests, tokens)];
                let (table, arm, line) = goodput(&CROWDED, &list, 1);
                slowest.push((permille(table.best_fixed(), arm.us()), line));
            }
        }
    }
    assert!(slowest.iter().all(|(part, _)| *part >= 970), "{slowest:#?}");
}

#[test]
fn texts_that_repeat_and_texts_that_do_not_are_each_served_at_their_best() {
    for (streams, requests) in [(1, 6), (4, 12), (8, 24), (32, 96)] {
        let half = |text, tokens| phase(text, streams, requests, tokens);
        let pair = [
            half(Text::Repeating, (250, 350)),
            half(Text::Fresh, (80, 120)),
        ];
        let list = [pair, pair, pair].concat();
        for seed in 1..3 {
            let (table, arm, line) = goodput(&NGRAM, &list, seed);
            let by_phase = table.best_by_phase();
            let sum = |us: &[u64], half: usize| us.iter().skip(half).step_by(2).sum::<u64>();
            for half in [0, 1] {
                assert!(
                    permille(sum(&by_phase, half), sum(&arm.phase_us, half)) >= 980,
                    "{line}"
                );
            }
        }
    }
}

/// The text changes within an answer, while no other request joins.
#[test]
fn a_text_that_turns_within_an_answer_is_followed() {
    let list = [phase(Text::Turning, 1, 12, (400, 700))];
    for machine in [STANDALONE, HEAD, DENSE] {
        let (mut best, mut us, mut lines) = (0, 0, Vec::new());
        for seed in 1..4 {
            let (table, arm, line) = goodput(&machine, &list, seed);
            (best, us) = (best + table.best_fixed(), us + arm.us());
            lines.push(line);
        }
        assert!(permille(best, us) >= 1025, "{lines:#?}");
    }
}

#[test]
fn times_that_were_measured_wrong_or_change_or_were_never_measured_cost_little() {
    for seed in 1..4 {
        let (table, arm, line) = goodput(&GROWING, &NINE, seed);
        assert!(permille(table.best_fixed(), arm.us()) >= 1080, "{line}");
        let (table, arm, line) = goodput(&UNMEASURED, &NINE, seed);
        assert!(permille(table.best_fixed(), arm.us()) >= 1060, "{line}");
        let load = [phase(Text::Code, 8, 400, (100, 200))];
        let (table, arm, line) = goodput(&MISJUDGED, &load, seed);
        assert!(permille(table.best_fixed(), arm.us()) >= 950, "{line}");
    }
}

/// A crowd, one stream, and sizes between, of texts for which no draft pays. Phases last
/// `length` milliseconds at the demo model's speed without drafts.
fn hard(length: u32) -> [Phase; 8] {
    // Tokens that `streams` streams put out in a second.
    let rate = |streams| match streams {
        1 => 2_700,
        4 => 4_100,
        8 => 4_700,
        _ => 5_100,
    };
    [1, 24, 1, 8, 4, 24, 4, 8].map(|streams| {
        let requests = (rate(streams) * length / 1000 / 60).max(streams);
        phase(Text::Half, streams as usize, requests, (40, 80))
    })
}

#[test]
fn adapting_costs_nothing_where_no_draft_pays() {
    let mut slow = Vec::new();
    for machine in [DEMO, DEMO_IN_CACHE] {
        // Milliseconds of a phase, repeats of the list, and the least part of the speed without
        // drafts: times and acceptance are learnt in the first seconds.
        for (length, times, least) in [
            (300, 1, 900),
            (300, 30, 985),
            (3_000, 1, 980),
            (3_000, 3, 987),
            (30_000, 1, 994),
        ] {
            let list = hard(length).repeat(times);
            for seed in 1..4 {
                let (_, arm, line) = goodput(&machine, &list, seed);
                let none = run(&machine, &list, Arm::Fixed(0), seed);
                let part = permille(none.us(), arm.us());
                println!("  of no drafts: {part} in {} ms", none.us() / 1000);
                if part < least {
                    slow.push(line);
                }
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

/// Effect of other programs on the times measured before serving: its name, and hundredths by
/// rows and depth.
type Spoilt = (&'static str, fn(u32, u32) -> u32);

/// Returns random hundredths for a cell.
fn drawn(rows: u32, depth: u32, seed: u64) -> u32 {
    [100, 200, 500, 1100][hash([rows.into(), depth.into(), seed, 5]) as usize % 4]
}

const SPOILT: [Spoilt; 11] = [
    ("all", |_, _| 500),
    ("drafting", |_, depth| if depth > 0 { 1100 } else { 100 }),
    (
        "drafting twice",
        |_, depth| if depth > 0 { 250 } else { 100 },
    ),
    ("no drafts", |_, depth| if depth == 0 { 1100 } else { 100 }),
    ("one draft", |_, depth| if depth == 1 { 1100 } else { 100 }),
    ("deeper", |_, depth| if depth > 1 { 1100 } else { 100 }),
    ("one row", |rows, _| if rows == 1 { 1100 } else { 100 }),
    ("many rows", |rows, _| if rows > 4 { 1100 } else { 100 }),
    ("drawn", |rows, depth| drawn(rows, depth, 1)),
    ("drawn again", |rows, depth| drawn(rows, depth, 2)),
    ("all drawn", |rows, depth| 5 * drawn(rows, depth, 3)),
];

/// If times before serving were spoilt, the best depth is found all the same, after a bounded
/// number of steps. A single size that was measured a third too long may go unnoticed.
#[test]
fn times_that_others_spoilt_before_serving_are_found_out() {
    let mut slow = Vec::new();
    for machine in [STANDALONE, HEAD, DENSE, TINY, CROWDED] {
        for (text, streams, requests) in [
            (Text::Predictable, 1, 10),
            (Text::Code, 1, 8),
            (Text::Predictable, 8, 80),
            (Text::Hard, 8, 60),
        ] {
            let third = phase(text, streams, requests, (150, 250));
            let list = [third, third, third];
            let best = Table::new(&machine, &list, 1).best_by_phase();
            for (name, spoilt) in SPOILT {
                let arm = run(
                    &Machine { spoilt, ..machine },
                    &list,
                    Arm::Policy("goodput"),
                    1,
                );
                let parts = [0, 1, 2].map(|at| permille(best[at], arm.phase_us[at]));
                println!("{} {streams} spoilt {name}: {parts:?}", machine.name);
                if parts[0] < 850 || parts[2] < 900 {
                    slow.push(format!("{} {streams} {name} {parts:?}", machine.name));
                }
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}
