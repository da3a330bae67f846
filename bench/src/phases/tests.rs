use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models");

fn args(line: &str) -> anyhow::Result<Args> {
    args_of("lockstep-demo-7m", line)
}

fn args_of(model: &str, line: &str) -> anyhow::Result<Args> {
    let model = format!("--model-path {MODELS}/{model} --tp-size 1 --threads-per-rank 1");
    let words = std::iter::once("phases");
    let words = words.chain(model.split_whitespace());
    let line: Line = clap::Parser::try_parse_from(words.chain(line.split_whitespace()))?;
    Ok(line.args)
}

fn no_demo(_: &Path) -> std::io::Result<PathBuf> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn measured(line: &str) -> anyhow::Result<(Value, tempfile::TempDir)> {
    let outcome = run(args(line)?, no_demo, &Registry::builtin())?;
    written(&outcome)
}

fn written(outcome: &Outcome) -> anyhow::Result<(Value, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    outcome.write(folder.path())?;
    let text = std::fs::read_to_string(folder.path().join("phases.json"))?;
    Ok((serde_json::from_str(&text)?, folder))
}

#[test]
fn a_list_is_measured_and_replayed() -> anyhow::Result<()> {
    let line = "--lists two-regimes --domains weather,poem --per-domain 2 --dwell 2 \
                --steps 0,2 --policies static --repeat 2 --max-tokens 24 \
                --max-running-requests 4";
    let (json, folder) = measured(line)?;
    let notes = &json["notes"];
    let different = "answers that differ from those without speculation";
    assert_eq!(notes[different], 0);
    assert_eq!(
        notes["positions where the log's model goes on otherwise"],
        0
    );
    let rows = json["rows"].as_array().context("rows")?;
    let arms: Vec<&str> = rows.iter().filter_map(|row| row["arm"].as_str()).collect();
    assert_eq!(arms, ["none", "depth 0", "depth 2", "static"]);
    for row in rows {
        let positive = [
            "seconds",
            "tokens/s",
            "ratio to best fixed",
            "low",
            "ratio to oracle",
        ];
        for column in positive {
            let value = row[column].as_f64();
            assert!(value.is_some_and(|value| value > 0.0), "{column}: {row}");
        }
        // Accepted drafts were logged at every position, so nothing that a replay depends on
        // is unknown.
        assert!(row["replay to measured"].is_number(), "{row}");
    }
    let text = std::fs::read_to_string(folder.path().join("phases.md"))?;
    assert!(text.contains("| two-regimes | depth 2 |"), "{text}");
    let steps = std::fs::read_to_string(folder.path().join("steps.csv"))?;
    let columns = steps.lines().next().map(|line| line.split(',').count());
    for line in steps.lines() {
        assert_eq!(Some(line.split(',').count()), columns, "{line}");
    }
    for arm in arms {
        let of_arm = |line: &&str| line.starts_with(&format!("two-regimes,{arm},2,4,"));
        assert!(steps.lines().any(|line| of_arm(&line)), "{arm}: {steps}");
    }
    let picture = std::fs::read_to_string(folder.path().join("two-regimes.svg"))?;
    assert_eq!(picture.matches("<polyline").count() % 2, 0);
    assert!(picture.contains(">static</text>"), "{picture}");
    Ok(())
}

#[test]
fn texts_that_repeat_are_measured_without_a_replay() -> anyhow::Result<()> {
    let line = "--lists repeats --algorithm ngram --domains poem --per-domain 2 --dwell 2 \
                --steps 3 --policies static --repeat 1 --max-tokens 24";
    let (json, _) = measured(line)?;
    let rows = json["rows"].as_array().context("rows")?;
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(
            row["ratio to none"].is_number() && row["ratio to oracle"].is_null(),
            "{row}"
        );
    }
    Ok(())
}

/// A recurrent model drafts with its own layer, and goes on from the states of all prompts.
#[test]
fn a_hybrid_is_measured_with_its_own_draft_layer() -> anyhow::Result<()> {
    let line = "--constant 2 --domains weather,poem --per-domain 1 --dwell 4 --steps 2 \
                --policies static --repeat 1 --max-tokens 24";
    let args = args_of("lockstep-demo-8m-hybrid", line)?;
    let (json, folder) = written(&run(args, no_demo, &Registry::builtin())?)?;
    let notes = &json["notes"];
    assert_eq!(notes["algorithm"], "NEXTN");
    let different = "answers that differ from those without speculation";
    assert_eq!(notes[different], 0);
    assert_eq!(
        notes["positions where the log's model goes on otherwise"],
        0
    );
    let rows = json["rows"].as_array().context("rows")?;
    let arms: Vec<&str> = rows.iter().filter_map(|row| row["arm"].as_str()).collect();
    assert_eq!(arms, ["none", "depth 2", "static"]);
    // All but the last token of a prompt is found, in each of two streams.
    let steps = std::fs::read_to_string(folder.path().join("steps.csv"))?;
    for line in steps.lines().skip(1) {
        let tokens = line.split(',').nth(8).context("prompt tokens")?;
        assert!(tokens.parse::<u32>()? <= 2, "{line}");
    }
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> anyhow::Result<()> {
    for (line, part) in [
        ("--dwell 0", "--dwell"),
        ("--constant 0", "--constant"),
        ("--domains nowhere", "domain"),
        ("--domains poem --policies nothing", "nothing"),
        ("--algorithm nothing", "NOTHING"),
    ] {
        let error = match run(args(line)?, no_demo, &Registry::builtin()) {
            Ok(_) => anyhow::bail!("{line} is taken"),
            Err(error) => format!("{error:#}"),
        };
        assert!(error.contains(part), "{line}: {error}");
    }
    assert!(args("--lists nowhere").is_err());
    Ok(())
}
