//! The figures as tables.

use serde_json::{Value, json};

use super::arms::Arm;
use super::bootstrap::Estimate;
use super::summary::{Measured, Replayed};
use super::texts::Log;
use super::work::Text;
use crate::report::{Report, Table};

/// A list with its replay, where one was possible.
pub type Figures = (Measured, Option<Replayed>);

/// Every arm of every list, then the tables behind these figures.
pub fn report(lists: &[Figures]) -> Report {
    let columns = [
        "list",
        "arm",
        "seconds",
        "tokens/s",
        "ratio to none",
        "ratio to best fixed",
        "low",
        "high",
        "ratio to best of phases",
        "worst phase",
        "its ratio",
        "ratio to oracle",
        "ratio to clairvoyant",
        "switches/min",
        "gap p50 ms",
        "gap p99 ms",
        "gap p99 to best fixed",
        "replay to measured",
    ];
    let mut report = Report::new("Phases by arm", &columns);
    for (measured, replayed) in lists {
        for at in 0..measured.arms.len() {
            report.row(row(measured, replayed.as_ref(), at));
        }
    }
    report.add(bests(lists));
    report.add(phases(lists));
    report.add(depths(lists));
    report
}

fn row(measured: &Measured, replayed: Option<&Replayed>, at: usize) -> Vec<Value> {
    let (seconds, gaps) = (measured.seconds(at), measured.gaps(at));
    let best = measured.ratio_to_best(at);
    let none = measured.arms.iter().position(|arm| *arm == Arm::None);
    let none = none.and_then(|none| measured.ratio_to(at, none));
    let interval = best.and_then(|best| best.interval);
    let worst = measured.worst_phase(at);
    let value = |estimate: Option<Estimate>| json!(estimate.map(|found| found.value));
    let p99 = |arm: usize| measured.gaps(arm).ms(99.0).as_f64();
    let fixed = measured.best_fixed().and_then(p99);
    let part = |bound: Option<f64>| json!(bound.map(|bound| bound / seconds));
    let of_arm = replayed.and_then(|replayed| replayed.arms.get(at).copied().flatten());
    vec![
        json!(measured.list.name),
        json!(measured.arms[at].to_string()),
        json!(seconds),
        json!(f64::from(measured.list.tokens()) / seconds),
        value(none),
        value(best),
        json!(interval.map(|(low, _)| low)),
        json!(interval.map(|(_, high)| high)),
        value(measured.ratio_to_best_of_phases(at)),
        json!(worst.map(|(phase, _)| phase_name(measured, phase))),
        json!(worst.map(|(_, ratio)| ratio)),
        part(replayed.and_then(|replayed| replayed.oracle)),
        part(replayed.and_then(|replayed| replayed.clairvoyant)),
        json!(measured.switches_per_minute(at)),
        gaps.ms(50.0),
        gaps.ms(99.0),
        json!(p99(at).zip(fixed).map(|(own, best)| own / best)),
        part(of_arm),
    ]
}

/// The best times that arms are compared with.
fn bests(lists: &[Figures]) -> Table {
    let columns = [
        "list",
        "tokens",
        "best fixed",
        "seconds",
        "oracle seconds",
        "clairvoyant seconds",
        "uncached prompt tokens of a request",
    ];
    let mut table = Table::new("What arms are held against", &columns);
    for (measured, replayed) in lists {
        let best = measured.best_fixed();
        let replayed = replayed.as_ref();
        table.row(vec![
            json!(measured.list.name),
            json!(measured.list.tokens()),
            json!(best.map(|best| measured.arms[best].to_string())),
            json!(best.map(|best| measured.seconds(best))),
            json!(replayed.and_then(|replayed| replayed.oracle)),
            json!(replayed.and_then(|replayed| replayed.clairvoyant)),
            json!(measured.prompt_tokens()),
        ]);
    }
    table
}

/// Every arm in every phase.
fn phases(lists: &[Figures]) -> Table {
    let columns = [
        "list",
        "phase",
        "arm",
        "tokens/s",
        "ratio to its best fixed",
    ];
    let mut table = Table::new("Phases", &columns);
    for (measured, _) in lists {
        for phase in 0..measured.work.phases.len() {
            let best = measured.best_of_phase(phase);
            for (at, arm) in measured.arms.iter().enumerate() {
                let rate = measured.rate(phase, at);
                let ratio = rate.zip(best).map(|(own, (_, best))| own / best);
                table.row(vec![
                    json!(measured.list.name),
                    json!(phase_name(measured, phase)),
                    json!(arm.to_string()),
                    json!(rate),
                    json!(ratio),
                ]);
            }
        }
    }
    table
}

/// Time of the policies by depth.
fn depths(lists: &[Figures]) -> Table {
    let columns = ["list", "arm", "depth", "part of its time"];
    let mut table = Table::new("Time by depth", &columns);
    for (measured, _) in lists {
        let arms = measured.arms.iter().enumerate();
        for (at, arm) in arms.filter(|(_, arm)| arm.adapts()) {
            for (depth, part) in measured.time_by_depth(at) {
                table.row(vec![
                    json!(measured.list.name),
                    json!(arm.to_string()),
                    json!(depth),
                    json!(part),
                ]);
            }
        }
    }
    table
}

/// The texts, with accepted drafts by position: a digit for each.
pub fn texts(texts: &[Text], log: Option<&Log>, depth: u32) -> [Table; 2] {
    let columns = [
        "domain",
        "texts",
        "tokens",
        "1 + accepted drafts, mean of positions",
    ];
    let mut domains = Table::new("Texts by domain", &columns);
    let of_domain = |domain: &str| -> Vec<usize> {
        let all = texts.iter().enumerate();
        let own = all.filter(|(_, text)| text.domain == domain);
        own.map(|(at, _)| at).collect()
    };
    let mut names: Vec<&str> = texts.iter().map(|text| text.domain.as_str()).collect();
    names.dedup();
    for name in names {
        let own = of_domain(name);
        let tokens: usize = own.iter().map(|at| texts[*at].answer.len()).sum();
        let accepted = log.map(|log| {
            let drafts = own.iter().map(|at| {
                let kept = (1..=depth).map(|depth| log.survival(*at, depth));
                kept.sum::<f64>() * texts[*at].answer.len() as f64
            });
            1.0 + drafts.sum::<f64>() / tokens.max(1) as f64
        });
        domains.row(vec![
            json!(name),
            json!(own.len()),
            json!(tokens),
            json!(accepted),
        ]);
    }
    let columns = ["domain", "accepted drafts by position"];
    let mut accepted = Table::new("Accepted drafts", &columns);
    if let Some(log) = log {
        for (at, text) in texts.iter().enumerate() {
            accepted.row(vec![json!(text.domain), json!(log.digits(at))]);
        }
    }
    [domains, accepted]
}

/// A phase with its place, because a list may have two equal phases.
pub fn phase_name(measured: &Measured, phase: usize) -> String {
    let phases = &measured.list.phases;
    phases
        .get(phase)
        .map_or_else(String::new, |found| format!("{}. {found}", phase + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::summary::tests::measured;

    #[test]
    fn arms_phases_and_depths_have_tables() {
        let replayed = Replayed {
            arms: vec![Some(18.0), Some(21.6), None],
            oracle: Some(13.5),
            clairvoyant: Some(12.0),
        };
        let report = report(&[(measured(), Some(replayed))]);
        expect_test::expect![[r#"
            # Phases by arm


            | list | arm | seconds | tokens/s | ratio to none | ratio to best fixed | low | high | ratio to best of phases | worst phase | its ratio | ratio to oracle | ratio to clairvoyant | switches/min | gap p50 ms | gap p99 ms | gap p99 to best fixed | replay to measured |
            | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
            | two | none | 18.00 | 3.33 | 1.00 | 1.00 | 1.00 | 1.00 | 0.750 | 1. mixed 1 | 0.500 | 0.750 | 0.667 | 10.00 | - | - | - | 1.00 |
            | two | depth 3 | 22.50 | 2.67 | 0.800 | 0.800 | 0.753 | 0.853 | 0.600 | 2. mixed 1 | 0.500 | 0.600 | 0.533 | 8.00 | - | - | - | 0.960 |
            | two | mine | 15.00 | 4.00 | 1.20 | 1.20 | 1.18 | 1.23 | 0.900 | 1. mixed 1 | 0.750 | 0.900 | 0.800 | 12.00 | - | - | - | - |

            ## What arms are held against

            | list | tokens | best fixed | seconds | oracle seconds | clairvoyant seconds | uncached prompt tokens of a request |
            | --- | --- | --- | --- | --- | --- | --- |
            | two | 60 | none | 18.00 | 13.50 | 12.00 | 0.000 |

            ## Phases

            | list | phase | arm | tokens/s | ratio to its best fixed |
            | --- | --- | --- | --- | --- |
            | two | 1. mixed 1 | none | 3.33 | 0.500 |
            | two | 1. mixed 1 | depth 3 | 6.67 | 1.00 |
            | two | 1. mixed 1 | mine | 5.00 | 0.750 |
            | two | 2. mixed 1 | none | 3.33 | 1.00 |
            | two | 2. mixed 1 | depth 3 | 1.67 | 0.500 |
            | two | 2. mixed 1 | mine | 3.33 | 1.00 |

            ## Time by depth

            | list | arm | depth | part of its time |
            | --- | --- | --- | --- |
            | two | mine | 0 | 0.667 |
            | two | mine | 1 | 0.333 |
        "#]].assert_eq(&report.to_markdown());
    }
}
