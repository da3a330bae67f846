use std::path::Path;

use serde_json::{Value, json};

use super::cell::{Cell, columns};
use super::*;
use crate::roofline::Work;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

#[test]
fn one_phase_alone_makes_its_rows_alone() -> anyhow::Result<()> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    let adapters = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/adapters");
    let folder = tempfile::tempdir()?;
    let with_adapters = format!("--batch 1,2 --lora-paths {adapters}/demo_one,{adapters}/demo_two");
    for (only, sizes, rows) in [
        ("prefill", "--prefill 17,33", [17, 33]),
        ("decode", with_adapters.as_str(), [20, 20]),
    ] {
        let line = format!(
            "offline --model-path {model} --tp-size 1 --threads-per-rank 1 --only {only} \
             {sizes} --context 20 --output-len 3 --repeat 1"
        );
        let line: Line = clap::Parser::try_parse_from(line.split_whitespace())?;
        let path = folder.path().join(only);
        let demo = |_: &Path| Err(std::io::ErrorKind::Unsupported.into());
        report(line.args, demo, 1 << 20)?.write(&path)?;
        let read: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let found = read["rows"].as_array().context("rows")?;
        assert!(found.iter().all(|row| row["phase"] == only), "{found:?}");
        let adapters = read["notes"]["adapters"].as_u64();
        assert_eq!(adapters, (only == "decode").then_some(2));
        let prompts: Vec<_> = found.iter().map(|row| row["prompt"].clone()).collect();
        assert_eq!(prompts, rows.map(|prompt| json!(prompt)));
        let reached = |row: &Value| row["of limit"].as_f64().is_some_and(|part| part > 0.0);
        assert!(found.iter().all(reached), "{found:?}");
        let limits = &read["tables"]["Limits of this machine, before and after the run"];
        assert_eq!(limits[0]["limit"], "memory read");
    }
    Ok(())
}

/// Kernels are held against the limits of their own instructions.
#[test]
fn limits_are_those_of_the_kernels() -> anyhow::Result<()> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    let line = format!(
        "offline --model-path {model} --tp-size 1 --threads-per-rank 1 --isa scalar --only decode \
         --batch 1 --context 8 --output-len 2 --repeat 1"
    );
    let line: Line = clap::Parser::try_parse_from(line.split_whitespace())?;
    let demo = |_: &Path| Err(std::io::ErrorKind::Unsupported.into());
    let json = report(line.args, demo, 1 << 20)?.to_json();
    let limits = &json["tables"]["Limits of this machine, before and after the run"];
    let limits = limits.as_array().context("rows")?;
    let names: Vec<_> = limits
        .iter()
        .filter_map(|row| row["limit"].as_str())
        .collect();
    let expected = [
        "memory read",
        "memory read + write",
        "f32 multiply-add",
        "barrier",
    ];
    assert_eq!(names, expected, "dot products are of wider sets");
    Ok(())
}

#[test]
fn what_is_measured_fits_the_model() -> anyhow::Result<()> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    for (more, prefill, context) in [
        ("", vec![128, 512, 1024], 1041),
        ("--context-length 300", vec![128, 150], 300),
        ("--prefill 2047", vec![2047], 2048),
    ] {
        let line =
            format!("offline --model-path {model} --device cpu --max-total-tokens 16384 {more}");
        let mut line: Line = clap::Parser::try_parse_from(line.split_whitespace())?;
        complete(&mut line.args)?;
        assert_eq!(line.args.prefill, prefill);
        let (config, _) = resolve(&line.args)?;
        assert_eq!(config.server.context_length, context, "{more}");
    }
    Ok(())
}

#[test]
fn a_row_has_a_cell_per_column() {
    let cell = Cell {
        phase: "decode",
        batch: 2,
        prompt: 10,
        tokens: 8,
        steps: 4,
        runs: vec![1.0, 2.0, 4.0],
        work: Work {
            bytes: 6e9,
            operations: 8e9,
        },
    };
    let ceiling = crate::roofline::Ceiling {
        bandwidth: Some(4e9),
        peak: Some(16e9),
    };
    let row = cell.row(ceiling.reached(cell.work, cell.median()));
    let named: Vec<_> = columns().into_iter().zip(row).collect();
    let wanted = [
        ("phase", json!("decode")),
        ("batch", json!(2)),
        ("prompt", json!(10)),
        ("tokens/s", json!(4.0)),
        ("min", json!(2.0)),
        ("max", json!(8.0)),
        ("ms/step", json!(500.0)),
        ("GB/s", json!(3.0)),
        ("GFLOP/s", json!(4.0)),
        ("of bandwidth", json!(0.75)),
        ("of compute", json!(0.25)),
        ("of limit", json!(0.75)),
    ];
    assert_eq!(named, wanted);
}
