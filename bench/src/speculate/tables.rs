//! The sums as tables.

use serde_json::{Value, json};

use super::tally::{Runner, Sums, Tally};
use crate::report::{Report, Table};

/// Columns of every table that has a row for a runner.
const FIGURES: [&str; 7] = [
    "tokens/round",
    "accepted by position",
    "ms/step",
    "tokens/s",
    "ratio",
    "lowest",
    "highest",
];

/// Every cell, then the tables of sums.
pub fn report(tally: &Tally) -> Report {
    let mut columns = vec!["domain", "batch", "algorithm", "steps"];
    columns.extend(FIGURES);
    let mut report = Report::new("Speculation by domain and depth", &columns);
    for batch in tally.batches() {
        for domain in tally.domains() {
            let plain = tally.get(domain, batch, &Runner::plain());
            for runner in tally.runners() {
                let sums = tally.get(domain, batch, &runner);
                let mut row = vec![json!(domain)];
                row.extend(cells(batch, &runner, &sums, &plain));
                report.row(row);
            }
        }
    }
    report.add(overall(tally));
    report.add(best(tally));
    report
}

fn cells(batch: usize, runner: &Runner, sums: &Sums, plain: &Sums) -> Vec<Value> {
    let drafts = runner.engine.is_some();
    let ratios = sums.ratios(plain).filter(|_| drafts);
    let accepted = sums.accepted();
    let accepted: Vec<String> = accepted.iter().map(|part| format!("{part:.2}")).collect();
    vec![
        json!(batch),
        json!(runner.algorithm),
        json!(runner.steps),
        json!(sums.tokens_per_round()),
        if drafts {
            json!(accepted.join(" "))
        } else {
            Value::Null
        },
        json!(sums.step_ms()),
        json!(sums.rate()),
        json!(ratios.map(|(median, ..)| median)),
        json!(ratios.map(|(_, low, _)| low)),
        json!(ratios.map(|(.., high)| high)),
    ]
}

/// Each runner over all domains: figures of all tokens and all time, and the mean of the
/// domains' ratios.
fn overall(tally: &Tally) -> Table {
    let mut columns = vec!["batch", "algorithm", "steps"];
    columns.extend(FIGURES);
    columns.push("mean ratio of domains");
    let mut table = Table::new("All domains", &columns);
    for batch in tally.batches() {
        let plain = tally.over_domains(batch, &Runner::plain());
        for runner in tally.runners() {
            let mut row = cells(batch, &runner, &tally.over_domains(batch, &runner), &plain);
            let mean = mean(tally, batch, &runner).filter(|_| runner.engine.is_some());
            row.push(json!(mean));
            table.row(row);
        }
    }
    table
}

/// The mean of the domains' ratios.
fn mean(tally: &Tally, batch: usize, runner: &Runner) -> Option<f64> {
    let ratios: Vec<f64> = tally
        .domains()
        .iter()
        .filter_map(|domain| ratio(tally, domain, batch, runner))
        .collect();
    (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
}

fn ratio(tally: &Tally, domain: &str, batch: usize, runner: &Runner) -> Option<f64> {
    let plain = tally.get(domain, batch, &Runner::plain());
    let (median, ..) = tally.get(domain, batch, runner).ratios(&plain)?;
    Some(median)
}

/// For every algorithm the depth with the highest mean ratio, the same for all domains,
/// beside the best depth of each domain.
fn best(tally: &Tally) -> Table {
    let columns = [
        "domain",
        "batch",
        "algorithm",
        "best steps",
        "ratio",
        "best over all",
        "its ratio",
    ];
    let mut table = Table::new("Best fixed depth", &columns);
    let runners: Vec<Runner> = tally
        .runners()
        .into_iter()
        .filter(|one| one.engine.is_some())
        .collect();
    for batch in tally.batches() {
        for group in runners.chunk_by(|one, other| one.engine == other.engine) {
            let steady = most(group, |runner| mean(tally, batch, runner));
            for domain in tally.domains() {
                let here = |runner: &Runner| ratio(tally, domain, batch, runner);
                let own = most(group, here);
                table.row(vec![
                    json!(domain),
                    json!(batch),
                    json!(group[0].algorithm),
                    json!(own.map(|runner| runner.steps)),
                    json!(own.and_then(here)),
                    json!(steady.map(|runner| runner.steps)),
                    json!(steady.and_then(here)),
                ]);
            }
        }
    }
    table
}

/// The runner with the greatest value.
fn most(group: &[Runner], value: impl Fn(&Runner) -> Option<f64>) -> Option<&Runner> {
    let known = group
        .iter()
        .filter_map(|runner| Some((runner, value(runner)?)));
    known
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(runner, _)| runner)
}
