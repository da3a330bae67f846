use std::path::{Path, PathBuf};

use crate::Described;

/// A copy of a fixture in bfloat16 whose first layer's factor is another.
fn changed(value: Option<f32>) -> tempfile::TempDir {
    let (from, dir) = (fixture(), tempfile::tempdir().expect("a temporary folder"));
    std::fs::copy(from.join("config.json"), dir.path().join("config.json")).expect("copied");
    let mut bytes = std::fs::read(from.join("model.safetensors")).expect("weights");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let name = "model.layers.0.layer_scalar";
    let header = std::str::from_utf8(&bytes[8..8 + length]).expect("text");
    match value {
        Some(value) => {
            let header: serde_json::Value = serde_json::from_str(header).expect("JSON");
            let begin = header[name]["data_offsets"][0].as_u64().expect("a place");
            let at = 8 + length + begin as usize;
            let high = (value.to_bits() >> 16) as u16;
            bytes[at..at + 2].copy_from_slice(&high.to_le_bytes());
        }
        None => {
            let other = header.replace(name, "model.layers.0.layer_scalaR");
            bytes[8..8 + length].copy_from_slice(other.as_bytes());
        }
    }
    std::fs::write(dir.path().join("model.safetensors"), bytes).expect("written");
    dir
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/architectures/gemma4")
}

#[test]
fn factors_are_read_from_the_tensors() {
    let model = crate::load(&fixture()).expect("a served model");
    let scales: Vec<f32> = model.layers.iter().map(|layer| layer.scale).collect();
    assert!(
        scales.iter().all(|scale| (0.5..1.2).contains(scale)),
        "{scales:?}"
    );
    assert!(scales.iter().all(|scale| *scale != 1.0), "{scales:?}");
    let all: f32 = scales.iter().product();
    assert_eq!(model.stream_divisor(0), 1.0);
    assert_eq!(model.stream_divisor(scales.len()), all);
    let other = changed(Some(0.25));
    let other = crate::load(other.path()).expect("a served model");
    assert_eq!(other.layers[0].scale, 0.25);
    assert_eq!(other.layers[1].scale, model.layers[1].scale);
}

#[test]
fn a_factor_that_is_missing_or_wrong_is_named() {
    for (value, reason) in [
        (None, "is missing"),
        (Some(0.0), "not above zero"),
        (Some(-1.0), "not above zero"),
        (Some(f32::NAN), "not above zero"),
    ] {
        let dir = changed(value);
        let described = Described::of(dir.path()).expect("a config");
        let error = described.with_names().expect_err("refused").to_string();
        assert!(error.contains("model.layers.0.layer_scalar"), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}
