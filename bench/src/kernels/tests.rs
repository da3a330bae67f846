use super::*;
use clap::Parser as _;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory as _;
    Command::command().debug_assert();
    for refused in [
        &["--shape", "1b", "--model-path", "x"][..],
        &["--hidden", "64", "--model-path", "x"],
        &["--isa", "mmx"],
        &["--only", "everything"],
        &["--weights", "f64"],
    ] {
        let line = ["kernels"].iter().chain(refused);
        assert!(Command::try_parse_from(line).is_err(), "{refused:?}");
    }
}

/// Runs every measurement over a small model, with hardly any memory.
#[test]
fn every_kernel_has_a_row_with_its_figures() -> anyhow::Result<()> {
    let line = "kernels --hidden 64 --intermediate 128 --heads 4 --kv-heads 2 --head-dim 16 \
                --vocab 96 --tokens 1,80 --threads 2 --repeat 2";
    let Command { args } = Command::try_parse_from(line.split_whitespace())?;
    let json = measure(&args, 256 << 10)?.to_json();
    let rows = json["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let kernels: std::collections::BTreeSet<&str> = rows
        .iter()
        .filter_map(|row| row["kernel"].as_str())
        .collect();
    let wanted = [
        "add_rms_norm",
        "attention decode",
        "attention prefill",
        "attention verify",
        "embed",
        "matmul down",
        "matmul gate_up",
        "matmul lm_head",
        "matmul o",
        "matmul qkv",
        "rms_norm",
        "rope",
        "sample, 1 thread",
        "silu_mul",
    ];
    assert!(kernels.iter().eq(&wanted), "{kernels:?}");
    let positive = |row: &serde_json::Value, name: &str| {
        row[name].as_f64().is_some_and(|x| x > 0.0 && x.is_finite())
    };
    for row in rows {
        assert!(positive(row, "us") && positive(row, "GB/s"), "{row}");
        let product = row["kernel"]
            .as_str()
            .is_some_and(|name| name.starts_with("matmul"));
        for name in ["GFLOP/s", "of bandwidth", "of limit"] {
            assert!(!product || positive(row, name), "{row}");
        }
        // Machines without vector extensions have no limit for integers.
        let float = row["format"] == "bf16" || row["format"] == "f32";
        assert!(!(product && float) || positive(row, "of compute"), "{row}");
    }
    // Logits of 80 tokens at once are never wanted.
    let heads = rows.iter().filter(|row| row["kernel"] == "matmul lm_head");
    assert_eq!(heads.count(), 4);
    let tables = &json["tables"];
    let steps = &tables["All matrix products of a layer, relative to one token"];
    assert_eq!(steps.as_array().map(Vec::len), Some(4 * 16));
    assert_eq!(steps[0]["ratio"], 1.0);
    let sums = &tables["Sums over 2 ranks in this process, and the product they follow"];
    assert_eq!(sums.as_array().map(Vec::len), Some(4 * 2 * 5));
    let limits = &tables["Limits of this machine, before and after the run"];
    assert_eq!(limits[0]["limit"], "memory read");
    assert!(positive(&limits[0], "before") && positive(&limits[0], "after"));
    Ok(())
}

/// A hybrid has the kernels of its recurrent layers beside those of its attention.
#[test]
fn recurrent_layers_have_kernels_of_their_own() -> anyhow::Result<()> {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");
    let line = |model: &str, parts: &str| -> anyhow::Result<Args> {
        let line = format!(
            "kernels --model-path {fixtures}/{model} --weights bf16 --tokens 1 --threads 1 \
             --repeat 1 --only {parts}"
        );
        Ok(Command::try_parse_from(line.split_whitespace())?.args)
    };
    let json = measure(&line("nextn/qwen3_5", "matmul,recurrent")?, 64 << 10)?.to_json();
    let rows = json["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let found = |kernel: &str, size: &str| {
        let mut rows = rows.iter();
        let row = rows.find(|row| row["kernel"] == kernel && row["size"] == size);
        row.is_some_and(|row| row["us"].as_f64().is_some_and(|us| us > 0.0))
    };
    // Queries with their gates, keys and values; then queries, keys, values and gates.
    for (kernel, size) in [
        ("matmul qkv", "64 -> 384"),
        ("matmul in_proj", "64 -> 640"),
        ("matmul out_proj", "256 -> 64"),
        ("gated_delta decode", "32 x 1"),
        ("gated_delta first verify", "8 x 8"),
        ("gated_delta verify", "8 x 8"),
        ("gated_delta prefill", "1 x 512"),
    ] {
        assert!(found(kernel, size), "{kernel} {size}: {rows:?}");
    }
    let refused = measure(&line("architectures/llama", "recurrent")?, 64 << 10);
    let refused = format!("{:#}", refused.err().context("no recurrent layers")?);
    assert!(refused.contains("--only recurrent"), "{refused}");
    Ok(())
}

#[test]
fn parts_can_be_measured_alone() -> anyhow::Result<()> {
    let line = "kernels --hidden 32 --intermediate 64 --heads 2 --kv-heads 1 --head-dim 16 \
                --vocab 64 --threads 1 --repeat 1 --only sampling --isa scalar";
    let Command { args } = Command::try_parse_from(line.split_whitespace())?;
    let json = measure(&args, 64 << 10)?.to_json();
    let rows = json["rows"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row["kernel"] == "sample, 1 thread"));
    assert_eq!(json["notes"]["kernels"], "scalar");
    Ok(())
}
