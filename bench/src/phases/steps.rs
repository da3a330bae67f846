//! All steps of all runs, one line each: the figures that a policy saw, and its choices.

use std::fmt::Write as _;

use super::run::Step;
use super::summary::Measured;

const COLUMNS: &str = "list,arm,repetition,phase,at_s,took_s,depth,decodes,prompt_tokens,tokens,\
                       draft_us,verify_us,extend_us\n";

/// The steps as comma-separated values, with a line that names the columns. Repetitions and
/// phases are counted from 1.
pub fn csv<'a>(lists: impl Iterator<Item = &'a Measured>) -> String {
    let mut text = COLUMNS.to_owned();
    for measured in lists {
        for (repetition, runs) in measured.runs.iter().enumerate() {
            for (arm, run) in measured.arms.iter().zip(runs) {
                for step in &run.steps {
                    let name = &measured.list.name;
                    let repetition = repetition + 1;
                    let _ = write!(text, "{name},{arm},{repetition},");
                    line(&mut text, step);
                }
            }
        }
    }
    text
}

fn line(text: &mut String, step: &Step) {
    let Step {
        phase,
        at,
        took,
        depth,
        decodes,
        prompt_tokens,
        tokens,
        stages,
    } = step;
    let (phase, draft, verify) = (phase + 1, stages.draft_us, stages.verify_us);
    let extend = stages.extend_us;
    let _ = writeln!(
        text,
        "{phase},{at:.6},{took:.6},{depth},{decodes},{prompt_tokens},{tokens},{draft},{verify},{extend}"
    );
}
