use std::time::Duration;

use lockstep_types::request::SpeculationUsage;
use serde_json::{Value, json};

use super::tally::{Cell, Run, Runner};
use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models");

fn args(line: &str) -> anyhow::Result<Args> {
    let words = std::iter::once("speculate").chain(line.split_whitespace());
    let line: Line = clap::Parser::try_parse_from(words)?;
    Ok(line.args)
}

fn no_demo(_: &Path) -> std::io::Result<PathBuf> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[test]
fn the_demo_family_is_measured() -> anyhow::Result<()> {
    let line = format!(
        "--model-path {MODELS}/lockstep-demo-7m --tp-size 1 --threads-per-rank 1 \
         --algorithms eagle3,standalone={MODELS}/lockstep-demo-1m-draft --steps 1,3 \
         --domains weather,smalltalk --per-domain 2 --batch 1,3 --max-tokens 24 --repeat 2"
    );
    let report = report(args(&line)?, no_demo, &Registry::builtin(), 1 << 20)?.to_json();
    let different = "answers that differ from those without speculation";
    assert_eq!(report["notes"][different], 0);
    let rows = report["rows"].as_array().context("rows")?;
    // Two domains, two batches, five runners.
    assert_eq!(rows.len(), 20);
    for row in rows {
        assert!(
            row["tokens/s"].as_f64().is_some_and(|rate| rate > 0.0),
            "{row}"
        );
        let drafts = row["algorithm"] != "none";
        assert_eq!(row["ratio"].is_number(), drafts, "{row}");
        let tokens = row["tokens/round"].as_f64();
        assert_eq!(tokens.is_some_and(|tokens| tokens >= 1.0), drafts, "{row}");
    }
    let best = report["tables"]["Best fixed depth"]
        .as_array()
        .context("best")?;
    assert_eq!(best.len(), 8);
    let limits = &report["tables"]["Limits of this machine, before and after the run"];
    assert_eq!(limits[0]["limit"], "memory read");
    Ok(())
}

/// Answers are JSON beside plain text, with drafts and without.
#[test]
fn answers_in_json_are_measured_beside_text() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    std::fs::write(
        &good,
        r#"{"type": "array", "items": {"type": "boolean"}, "maxItems": 9}"#,
    )?;
    std::fs::write(&bad, r#"{"uniqueItems": true}"#)?;
    let line = |schema: &Path| {
        args(&format!(
            "--model-path {MODELS}/lockstep-demo-7m --tp-size 1 --threads-per-rank 1 \
             --algorithms ngram --steps 3 --domains weather --per-domain 1 --max-tokens 24 \
             --json-schema {}",
            schema.display()
        ))
    };
    let measured = report(line(&good)?, no_demo, &Registry::builtin(), 1 << 20)?.to_json();
    let different = "answers that differ from those without speculation";
    assert_eq!(measured["notes"][different], 0);
    let rows = measured["rows"].as_array().context("rows")?;
    let domains: Vec<_> = rows.iter().map(|row| row["domain"].clone()).collect();
    let [text, constrained] = ["weather", "weather as JSON"].map(|name| json!(name));
    assert_eq!(
        domains,
        [&text, &text, &constrained, &constrained].map(Clone::clone)
    );
    let refused = report(line(&bad)?, no_demo, &Registry::builtin(), 1 << 20);
    let refused = format!(
        "{:#}",
        refused.err().context("a keyword that is not obeyed")?
    );
    assert!(
        refused.contains("uniqueItems") && refused.contains("--json-schema"),
        "{refused}"
    );
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> anyhow::Result<()> {
    let model = format!("{MODELS}/lockstep-demo-7m");
    let refused = |line: &str| -> anyhow::Result<String> {
        let args = args(&format!("--model-path {model} {line}"))?;
        match report(args, no_demo, &Registry::builtin(), 1 << 20) {
            Ok(_) => anyhow::bail!("{line} is taken"),
            Err(error) => Ok(format!("{error:#}")),
        }
    };
    for (line, part) in [
        ("--algorithms standalone", "lockstep-demo-7m-draft"),
        ("--algorithms nothing", "NOTHING"),
        ("--steps 0", "--steps"),
        ("--batch 0", "--batch"),
        ("--domains nowhere", "domain"),
        ("--prompts nowhere.json", "nowhere.json"),
    ] {
        let error = refused(line)?;
        assert!(error.contains(part), "{line}: {error}");
    }
    Ok(())
}

#[test]
fn ratios_are_taken_within_a_repetition() {
    let mut tally = Tally::default();
    let drafting = Runner {
        engine: Some(0),
        algorithm: "EAGLE3".into(),
        steps: 2,
    };
    let cell = |runner: &Runner| Cell {
        domain: "facts".into(),
        batch: 1,
        runner: runner.clone(),
    };
    let run = |seconds: u64, texts: u32| Run {
        texts: vec![vec![7; texts as usize]],
        took: Duration::from_secs(seconds),
        tokens: 12,
        steps: 6,
        after_first: 12,
        usage: SpeculationUsage {
            verify_steps: 6,
            draft_tokens: 12,
            proposed: vec![6, 6],
            accepted: vec![4, 2],
        },
    };
    let plain = vec![vec![7; 13]];
    for (repetition, (none, drafted)) in [(6, 3), (12, 3), (12, 12)].into_iter().enumerate() {
        tally.add(cell(&Runner::plain()), repetition, &run(none, 13), &plain);
        tally.add(cell(&drafting), repetition, &run(drafted, 13), &plain);
    }
    let sums = tally.get("facts", 1, &drafting);
    let none = tally.get("facts", 1, &Runner::plain());
    assert_eq!(sums.ratios(&none), Some((2.0, 1.0, 4.0)));
    assert_eq!(sums.rate(), Some(4.0));
    assert_eq!(sums.step_ms(), Some(1000.0));
    assert_eq!(sums.tokens_per_round(), Some(2.0));
    assert_eq!(sums.accepted(), [12.0 / 18.0, 6.0 / 18.0]);
    assert_eq!(tally.different(), 0);
    tally.add(cell(&drafting), 0, &run(1, 12), &plain);
    assert_eq!(tally.different(), 1);
    let json: Value = tables::report(&tally).to_json();
    assert_eq!(json["rows"][1]["accepted by position"], json!("0.67 0.33"));
    assert_eq!(json["tables"]["Best fixed depth"][0]["best steps"], 2);
}
