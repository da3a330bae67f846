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
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/architectures/llama");
    let folder = tempfile::tempdir()?;
    std::fs::copy(model.join("config.json"), folder.path().join("config.json"))?;
    let path = folder.path().display();
    let line = format!("device --model-path {path} --load-format dummy {line}");
    let Command { args } = Command::try_parse_from(line.split_whitespace())?;
    run(args, no_demo)
}

/// Runs every measurement over a small model of random weights. The fake GPU's clock counts
/// the work that it was asked for.
#[test]
fn every_measurement_has_its_figures() -> anyhow::Result<()> {
    let json = report(
        "--device cuda --rows 1,80 --attention 2x20 --decode 1x20,3x20 --prefill 16 --sampled 3 \
         --peak 64 --working-set 1 --steps 2 --repeat 3",
    )?
    .to_json();
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
    assert_eq!(count("attention decode"), 1);
    assert_eq!(count("choose, top-k and top-p"), 1);
    let table = |title: &str| {
        json["tables"][title]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let ceilings = table("Ceilings of this run");
    assert_eq!(ceilings.len(), 3);
    assert!(ceilings.iter().all(|row| figure(row, "median")));
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
