//! All cells as tables.

use std::fmt::Write as _;

use super::{Arm, EAGLE3, H100, Machine, STANDALONE, all, outcome};

/// Arms in a table, beside the best single depths.
const ARMS: [Arm; 5] = [Arm::Sums, Arm::Least, Arm::Most, Arm::First, Arm::Own];
/// Numbers of DP ranks.
const SIZES: [usize; 3] = [2, 8, 64];
/// Runs of each cell; a figure is the sum of all of them.
const SEEDS: u64 = 3;

/// Returns the Markdown tables for 2, 8 and 64 DP ranks. Figures are tokens relative to the
/// best single depth of each phase. The last column is tokens with requests' own depths
/// relative to those without.
pub fn markdown() -> String {
    let mut text = String::new();
    for machine in [STANDALONE, EAGLE3, H100] {
        let columns = "sums | min-vote | max-vote | rank 0 alone | own depths, to sums";
        let _ = write!(text, "\n| {} | best depths | {columns} |\n", machine.name);
        let _ = writeln!(text, "|---|---|---|---|---|---|---|");
        let sizes = SIZES.map(|dp_size| column(&machine, dp_size));
        let [two, eight, many] = &sizes;
        for ((two, eight), many) in two.iter().zip(eight).zip(many) {
            let lines = [two, eight, many];
            let join = |of: &dyn Fn(&Line) -> String| lines.map(of).join(" / ");
            let best = join(&|line| line.best.clone());
            let _ = write!(text, "| {} | {best} |", lines[0].cell);
            for arm in 0..ARMS.len() {
                let parts = join(&|line| format!("{:.3}", line.parts[arm]));
                let _ = write!(text, " {parts} |");
            }
            text.push('\n');
        }
    }
    text
}

/// Results of a cell with one number of DP ranks.
struct Line {
    cell: &'static str,
    best: String,
    parts: [f64; ARMS.len()],
}

fn column(machine: &Machine, dp_size: usize) -> Vec<Line> {
    let lines = all(dp_size).into_iter().map(|cell| {
        let seeds = (1..=SEEDS).map(|seed| outcome(machine, &cell, &ARMS, seed));
        let outcomes: Vec<_> = seeds.collect();
        let arm = |at: usize| outcomes.iter().map(|outcome| outcome.arms[at]).sum::<u64>();
        let oracle = outcomes.iter().map(|outcome| outcome.oracle).sum();
        let best = outcomes[0].best.iter().map(u32::to_string);
        Line {
            cell: cell.name,
            best: best.collect::<Vec<_>>().join(" "),
            parts: std::array::from_fn(|at| match ARMS[at] {
                Arm::Own => part(arm(at), arm(0)),
                _ => part(arm(at), oracle),
            }),
        }
    });
    lines.collect()
}

fn part(tokens: u64, of: u64) -> f64 {
    tokens as f64 / of as f64
}
