use std::io;
use std::path::Path;

use clap::Parser as _;

use super::*;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// Writes no demo model: the tests name a model.
fn no_demo(_folder: &Path) -> io::Result<PathBuf> {
    Err(io::ErrorKind::NotFound.into())
}

fn report(line: &str) -> anyhow::Result<Report> {
    report_of(64, line)
}

/// Measures a small model of this hidden size.
fn report_of(hidden: usize, line: &str) -> anyhow::Result<Report> {
    report_on("llama", Some(hidden), line)
}

/// Measures the model of a fixture, perhaps with another hidden size.
fn report_on(name: &str, hidden: Option<usize>, line: &str) -> anyhow::Result<Report> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/architectures");
    let folder = tempfile::tempdir()?;
    let text = std::fs::read_to_string(models.join(name).join("config.json"))?;
    let mut config: serde_json::Value = serde_json::from_str(&text)?;
    if let Some(hidden) = hidden {
        config["hidden_size"] = serde_json::json!(hidden);
    }
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    let path = folder.path().display();
    let line = format!("device --model-path {path} --load-format dummy {line}");
    let Command { args } = Command::try_parse_from(line.split_whitespace())?;
    run(args, no_demo)
}

/// Runs every measurement over a small model of random weights. The fake GPU's clock counts
/// the work that it was asked for.
#[test]
fn every_measurement_has_its_figures() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let lines = folder.path().join("lines");
    let kept = folder.path().join("kept");
    let json = report(&format!(
        "--device cuda --rows 1,80 --attention 2x20,1x300 --decode 1x20,3x20 --prefill 16 \
         --sampled 3 --elementwise 1,80 --peak 64 --working-set 1 --steps 2 --repeat 3 \
         --lines {} --weight-cache {}",
        lines.display(),
        kept.display()
    ))?
    .to_json();
    let names = std::fs::read_dir(kept.join(lockstep_devices::KERNELS))?;
    assert!(names.count() > 10, "compiled kernels are kept");
    let text = serde_json::to_string(&json)?;
    let json: serde_json::Value = serde_json::from_str(&text)?;
    let figure = |row: &serde_json::Value, name: &str| {
        row[name]
            .as_f64()
            .is_some_and(|x| x >= 0.0 && x.is_finite())
    };
    let rows = json["rows"].as_array().map_or(&[][..], Vec::as_slice);
    for row in rows {
        for name in &parts::COLUMNS[2..] {
            assert!(figure(row, name), "{name} of {row}");
        }
    }
    let count = |kernel: &str| rows.iter().filter(|row| row["kernel"] == kernel).count();
    for product in ["qkv", "o", "gate_up", "down", "lm_head"] {
        assert_eq!(count(&format!("product {product}")), 2, "{text}");
    }
    for (kernel, lines) in [
        ("attention decode", 2),
        ("attend of decode", 2),
        // Only the longer one has several spans, but the kernel is launched for both.
        ("attention_merge of decode", 2),
        ("attention_plan of decode", 2),
        ("attention prompt", 1),
        ("choose, top-k and top-p", 1),
        ("choose, greedy", 1),
        ("rms_norm", 2),
        ("rms_norm, cached", 2),
        ("silu_mul", 2),
        ("rotate_and_store", 2),
        ("attention_plan of prompt", 1),
        ("rms_norm of the parts of o", 1),
        ("empty, behind another", 2),
        ("reading the cache", 1),
    ] {
        assert_eq!(count(kernel), lines, "{kernel}: {text}");
    }
    let table = |title: &str| {
        json["tables"][title]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let ceilings = table("Ceilings of this run");
    assert_eq!(ceilings.len(), 3);
    assert!(ceilings.iter().all(|row| figure(row, "median")));
    let bits = table("Bits of wgmma beside mma.sync");
    let why = bits[0]["not compared"].as_str();
    match lockstep_fake_cuda::seed(1) {
        true => assert!(why.is_some_and(|why| why.contains("wgmma")), "{text}"),
        // A GPU has wgmma or says that it has not.
        false => assert!(why.is_some() || figure(&bits[0], "different"), "{text}"),
    }
    let steps = table("Decode steps, tokens chosen on the device");
    assert_eq!(steps.len(), 4, "{text}");
    for row in &steps {
        for name in [
            "device us",
            "floor us",
            "of floor",
            "GB/s",
            "wall us",
            "host us between steps",
        ] {
            assert!(figure(row, name), "{name} of {row}");
        }
    }
    let prompt = table("A prompt in one pass");
    assert!(
        figure(&prompt[0], "tokens/s") && figure(&prompt[0], "of product"),
        "{text}"
    );
    let recording = table("Recording all passes before serving");
    assert_eq!(recording[0]["passes"], 3, "1, 2 and 3 requests");
    assert!(
        figure(&recording[0], "MiB") && figure(&recording[0], "seconds"),
        "{text}"
    );
    let [took, reserved] = ["MiB", "MiB reserved"].map(|name| recording[0][name].as_f64());
    assert!(Some(0.0) < took && took <= reserved, "{text}");
    every_figure_has_its_line(&std::fs::read_to_string(lines)?, &json)
}

/// Compares lines that were written meanwhile with the report.
fn every_figure_has_its_line(lines: &str, report: &serde_json::Value) -> anyhow::Result<()> {
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    assert!(lines.iter().all(|line| line["at s"].is_number()));
    let tables = report["tables"].as_object().into_iter().flatten();
    let tables = tables.filter_map(|(_, rows)| rows.as_array());
    let rows = report["rows"].as_array();
    let rows: Vec<_> = rows.into_iter().chain(tables).flatten().collect();
    assert_eq!(lines.len(), rows.len());
    for row in rows {
        let row = row.as_object().cloned().unwrap_or_default();
        let holds = |line: &&serde_json::Value| row.iter().all(|(name, of)| line[name] == *of);
        assert!(lines.iter().any(|line| holds(&line)), "{row:?}");
    }
    Ok(())
}

/// A part that is asked for by itself brings nothing else.
#[test]
fn parts_are_measured_alone() -> anyhow::Result<()> {
    let sizes = "--device cuda --decode 1x8 --prefill 8 --peak 64 --working-set 1 --repeat 1";
    let report = report(&format!("{sizes} --only latency"))?.to_json();
    let rows = report["rows"].as_array().map_or(0, Vec::len);
    assert_eq!(rows, 3, "{report}");
    let tables = report["tables"].as_object().map_or(0, |tables| {
        tables
            .values()
            .filter(|rows| **rows != serde_json::json!([]))
            .count()
    });
    assert_eq!(tables, 1, "the ceilings: {report}");
    Ok(())
}

/// A mixture whole, and its kernels. A row goes through 3 of 9 experts of 28 columns; 80 rows go
/// through all.
#[test]
fn a_mixture_of_experts_has_its_lines() -> anyhow::Result<()> {
    let sizes = "--device cuda --decode 1x8 --prefill 8 --peak 64 --working-set 1 --repeat 1";
    let line = format!("{sizes} --only experts --rows 1,80");
    let json = report_on("qwen3_moe", None, &line)?.to_json();
    let rows = json["rows"].as_array().cloned().unwrap_or_default();
    for kernel in [
        "experts",
        "experts, routes",
        "experts, products",
        "experts, sums",
    ] {
        for size in ["1 x 3 of 9 x 28", "80 x 3 of 9 x 28"] {
            let of = |row: &&serde_json::Value| row["kernel"] == kernel && row["size"] == size;
            assert!(rows.iter().any(|row| of(&row)), "{kernel} {size}: {json}");
        }
    }
    let router = |row: &&serde_json::Value| row["kernel"] == "experts, router";
    assert_eq!(rows.iter().filter(router).count(), 2, "{json}");
    let refused = report(&line).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|error| error.contains("this model has none")));
    Ok(())
}

/// A recurrent layer whole, and its kernels, for steps and for a prompt.
#[test]
fn a_recurrent_layer_has_its_lines() -> anyhow::Result<()> {
    let sizes = "--device cuda --decode 1x8 --prefill 9 --peak 64 --working-set 1 --repeat 1";
    let line = format!("{sizes} --only recurrent --rows 2");
    let json = report_on("qwen3_next", None, &line)?.to_json();
    let rows = json["rows"].as_array().cloned().unwrap_or_default();
    for kernel in [
        "recurrent",
        "recurrent, before",
        "recurrent, states",
        "recurrent, behind",
    ] {
        for size in ["2 x 8 x 16", "9 tokens"] {
            let of = |row: &&serde_json::Value| row["kernel"] == kernel && row["size"] == size;
            assert!(rows.iter().any(|row| of(&row)), "{kernel} {size}: {json}");
        }
    }
    let refused = report(&line).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|error| error.contains("this model has none")));
    Ok(())
}

/// Packed experts with biases, of which a row goes through 2 of 6. Their weights take 4.25 bits each.
#[test]
fn packed_experts_have_their_lines() -> anyhow::Result<()> {
    let sizes = "--device cuda --decode 1x8 --prefill 8 --peak 64 --working-set 1 --repeat 1";
    let line = format!("{sizes} --only experts --rows 1");
    let json = report_on("gpt_oss_mxfp4", None, &line)?.to_json();
    let rows = json["rows"].as_array().cloned().unwrap_or_default();
    let whole =
        |row: &&serde_json::Value| row["kernel"] == "experts" && row["size"] == "1 x 2 of 6 x 128";
    let found = rows.iter().find(whole);
    let field = |of: &str| found.and_then(|row| row[of].as_f64()).unwrap_or_default();
    let weights = 2.0 * f64::from(3 * 128 * 64) * 4.25 / 8.0;
    let (routes, sums) = (4 * 6 + 16 * 2, 4 * 64 * 3);
    let rows = 64 * 2 + 2 * (2 * 128 * 2 + 4 * 64);
    let bytes = field("GB/s") * field("us") * 1e3;
    let expected = weights + f64::from(routes + sums + rows);
    assert!((bytes - expected).abs() < 1.0, "{bytes}: {json}");
    Ok(())
}

/// A norm of more columns than registers hold has a kernel of its own.
#[test]
fn norms_of_wide_rows_have_their_lines() -> anyhow::Result<()> {
    let sizes = "--device cuda --decode 1x8 --prefill 8 --peak 64 --working-set 1 --repeat 1";
    let report = report_of(4104, &format!("{sizes} --only elementwise --elementwise 1"))?;
    let json = report.to_json();
    let rows = json["rows"].as_array().cloned().unwrap_or_default();
    for kernel in ["rms_norm", "rms_norm of the parts of o"] {
        let line = rows.iter().find(|row| row["kernel"] == kernel);
        assert!(line.is_some_and(|row| row["size"] == "1 x 4104"), "{json}");
    }
    Ok(())
}

/// Bytes of one call over one layer, by hand: a token's heads have 256 columns together, 128 of
/// queries and 64 each of keys and values.
#[test]
fn bytes_are_those_that_a_call_moves() -> anyhow::Result<()> {
    let report = report(
        "--device cuda --elementwise 1,80 --attention 2x20 --decode 1x8 --prefill 16 --peak 64 \
         --working-set 1 --repeat 1 --only elementwise,attention",
    )?;
    let json = report.to_json();
    let rows = json["rows"].as_array().cloned().unwrap_or_default();
    let cached = 2 * (64 + 64);
    for (kernel, size, bytes) in [
        ("rotate_and_store", "1 x 256", 4 * 256 + 2 * 128 + cached),
        (
            "rotate_and_store",
            "80 x 256",
            80 * (4 * 256 + 2 * 128 + cached),
        ),
        ("attention decode", "2 x 20", 2 * 21 * cached),
        ("attend of decode", "2 x 20", 2 * 21 * cached),
        ("attention prompt", "16", 16 * cached),
    ] {
        let of = |row: &&serde_json::Value| row["kernel"] == kernel && row["size"] == size;
        let line = rows.iter().find(of).expect(kernel);
        let [rate, us] = ["GB/s", "us"].map(|name| line[name].as_f64().unwrap_or_default());
        // A difference of times may be zero, and then there is no rate.
        let found = if us > 0.0 {
            rate * us * 1e3
        } else {
            f64::from(bytes)
        };
        assert!((found - f64::from(bytes)).abs() < 0.5, "{bytes}: {line}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (line, said) in [
        ("--device cuda", "give smaller ones"),
        (
            "--device cpu --prefill 8 --decode 1x8",
            "lockstep bench kernels",
        ),
        ("--device cuda --repeat 0", "at least 1"),
        ("--device cuda --elementwise 1,0", "at least 1"),
        (
            "--device cuda --prefill 8 --decode 1x8 --disable-cuda-graph --only steps",
            "launches",
        ),
        (
            "--device cuda --tp-size 2 --gpu-id-step 0 --prefill 8 --decode 1x8",
            "--tp-size",
        ),
    ] {
        let error = report(line).err().expect("refused").to_string();
        assert!(error.contains(said), "{error}");
    }
    for bad in ["64", "x", "0x4", "4x0", "4x"] {
        assert!(bad.parse::<Requests>().is_err(), "{bad}");
    }
}
