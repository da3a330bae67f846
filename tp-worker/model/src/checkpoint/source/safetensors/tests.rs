use std::{collections::HashMap, fs};

use ::safetensors::{Dtype, serialize, tensor::TensorView};
use tempfile::TempDir;

use lockstep_backend::HostBlock;
use lockstep_files::LARGEST_INDEX;

use super::*;

mod fp8;
mod integers;
mod stacks;

fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views: HashMap<String, TensorView<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            let view = TensorView::new(*dtype, shape.to_vec(), bytes).unwrap();
            (name.to_string(), view)
        })
        .collect();
    serialize(views, None).unwrap()
}

/// Returns a matrix `[2, 3]` with the values 0 to 5 in bf16.
fn matrix() -> Vec<u8> {
    (0..6u16)
        .flat_map(|i| half::bf16::from_f32(f32::from(i)).to_le_bytes())
        .collect()
}

fn simple() -> Vec<u8> {
    file(&[
        ("a", Dtype::BF16, &[2, 3], &matrix()),
        ("b", Dtype::F32, &[1], &1.5f32.to_le_bytes()),
        ("c", Dtype::I8, &[4], &[0; 4]),
    ])
}

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn open(files: &[(&str, &[u8])]) -> Result<Safetensors, ModelError> {
    let folder = folder(files);
    // The mapping outlives the folder's names.
    Safetensors::open(folder.path(), FileAccess::Mapped)
}

#[test]
fn blocks_point_into_the_file() {
    let weights = open(&[("model.safetensors", &simple())]).unwrap();
    let names: Vec<_> = weights.tensors.keys().collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(weights.contains("a") && !weights.contains("d"));
    let tensor = weights.tensor("a", &[2, 3]).unwrap();
    assert_eq!(tensor.to_f32(1..5), [1.0, 2.0, 3.0, 4.0]);
    let values = |block: HostBlock<'_>, cols: usize| {
        let matrix = lockstep_backend::HostFloats {
            cols,
            dtype: tensor.dtype,
            blocks: vec![block],
        };
        let rows = (0..block.rows).map(|row| matrix.row(row).unwrap());
        let pairs = rows.flat_map(|row| row.chunks(2));
        pairs
            .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect::<Vec<_>>()
    };
    assert_eq!(values(tensor.block(1..2, 0), 3), [3.0, 4.0, 5.0]);
    assert_eq!(values(tensor.block(0..2, 1), 2), [1.0, 2.0, 4.0, 5.0]);
    assert_eq!(weights.tensor("b", &[1]).unwrap().to_f32(0..1), [1.5]);
}

#[test]
fn nothing_is_copied_of_what_is_mapped() {
    let weights = open(&[("model.safetensors", &simple())]).unwrap();
    let matrix = weights.tensor("a", &[2, 3]).unwrap();
    let matrix = HostMatrix::Floats(lockstep_backend::HostFloats {
        cols: 3,
        dtype: matrix.dtype,
        blocks: vec![matrix.block(0..2, 0)],
    });
    let mut buffer = Vec::new();
    assert!(weights.fetch(&matrix, &mut buffer).unwrap().is_none());
    assert_eq!(buffer.capacity(), 0, "nor is there room for it");
}

#[test]
fn errors_name_file_tensor_and_expectation() {
    let weights = open(&[("model.safetensors", &simple())]).unwrap();
    for (error, parts) in [
        (
            weights.tensor("z", &[7, 8]).unwrap_err(),
            ["z", "[7, 8]", "no tensor"],
        ),
        (
            weights.tensor("a", &[3, 2]).unwrap_err(),
            ["model.safetensors", "[2, 3]", "[3, 2]"],
        ),
        (
            weights.tensor("a", &[6]).unwrap_err(),
            ["model.safetensors", "[2, 3]", "[6]"],
        ),
        (
            weights.tensor("c", &[4]).unwrap_err(),
            ["model.safetensors", "c", "I8"],
        ),
    ] {
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn damaged_files_are_errors() {
    let good = simple();
    let mut long = good.clone();
    long.push(0);
    let mut garbage = good.clone();
    garbage[8] = b'!';
    let huge = [u64::MAX.to_le_bytes().to_vec(), vec![0; 100]].concat();
    let header = br#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    let endless = [&length[..], header, &[0; 4]].concat();
    for (bytes, part) in [
        (&endless[..], "damaged"),
        (&good[..good.len() - 3], "should have"),
        (&good[..20], "header should have"),
        (&good[..4], "damaged"),
        (&[][..], "damaged"),
        (&long, "should have"),
        (&garbage, "damaged"),
        (&huge, "damaged"),
    ] {
        let error = open(&[("model.safetensors", bytes)])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(part) && error.contains("model.safetensors"),
            "{error}"
        );
    }
}

#[test]
fn an_index_names_the_files() {
    let first = file(&[("a", Dtype::BF16, &[2, 3], &matrix())]);
    let second = file(&[("b", Dtype::F32, &[1], &2f32.to_le_bytes())]);
    let index = |map: &str| format!("{{\"metadata\": {{}}, \"weight_map\": {map}}}").into_bytes();
    let both = index(r#"{"a": "1.safetensors", "b": "2.safetensors"}"#);
    let with = |index: &[u8], second: &[u8]| {
        open(&[
            ("model.safetensors.index.json", index),
            ("1.safetensors", &first),
            ("2.safetensors", second),
        ])
    };
    let weights = with(&both, &second).unwrap();
    assert!(weights.tensor("a", &[2, 3]).is_ok() && weights.tensor("b", &[1]).is_ok());
    let duplicate = with(&both, &first).unwrap_err();
    assert!(matches!(duplicate, ModelError::Duplicate { ref tensor, .. } if tensor == "a"));
    let missing = with(&index(r#"{"a": "3.safetensors"}"#), &second).unwrap_err();
    assert!(matches!(missing, ModelError::Read { .. }) && missing.to_string().contains("3.safe"));
    for name in [
        "../1.safetensors",
        "/etc/passwd",
        "",
        "x/1.safetensors",
        "..",
    ] {
        let escape = with(&index(&format!("{{\"a\": {name:?}}}")), &second).unwrap_err();
        assert!(
            matches!(escape, ModelError::Damaged { .. }),
            "{name}: {escape}"
        );
    }
    assert!(matches!(
        with(b"[]", &second),
        Err(ModelError::Damaged { .. })
    ));
}

#[test]
fn a_folder_without_weights_is_an_error() {
    assert!(matches!(
        open(&[("config.json", b"{}")]),
        Err(ModelError::NoWeights { .. })
    ));
}

#[test]
fn sizes_are_believed_only_within_bounds() {
    // A file of a terabyte that claims that half of it is its header.
    let sparse = folder(&[("model.safetensors", &(1u64 << 39).to_le_bytes())]);
    let path = sparse.path().join("model.safetensors");
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = Safetensors::open(sparse.path(), FileAccess::Mapped)
        .unwrap_err()
        .to_string();
    assert!(error.contains("header"), "{error}");
    let names = (0..=lockstep_files::MOST_WEIGHT_FILES)
        .map(|at| (format!("t{at}"), format!("{at}.safetensors").into()));
    let map: serde_json::Map<String, serde_json::Value> = names.collect();
    let index = serde_json::json!({"weight_map": map}).to_string();
    let error = open(&[("model.safetensors.index.json", index.as_bytes())]).unwrap_err();
    assert!(error.to_string().contains("513 files"), "{error}");
}

#[test]
fn headers_are_bounded_together() {
    let index = br#"{"weight_map": {"a": "1.safetensors", "z": "2.safetensors"}}"#;
    let both = folder(&[
        ("model.safetensors.index.json", index),
        ("1.safetensors", &simple()),
        ("2.safetensors", &LARGEST_INDEX.to_le_bytes()),
    ]);
    let path = both.path().join("2.safetensors");
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(2 * LARGEST_INDEX).unwrap();
    let error = Safetensors::open(both.path(), FileAccess::Mapped)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("2.safetensors") && error.contains("together"),
        "{error}"
    );
}

#[test]
fn files_that_are_not_regular_or_elsewhere_are_not_read() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let outside = folder(&[("model.safetensors", &simple())]);
    for name in ["model.safetensors", "model.safetensors.index.json"] {
        let odd = folder(&[]);
        let path = odd.path().join(name);
        std::os::unix::fs::symlink(outside.path().join("model.safetensors"), &path).unwrap();
        let error = Safetensors::open(odd.path(), FileAccess::Mapped)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(name) && error.contains("link out"),
            "{error}"
        );
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = Safetensors::open(odd.path(), FileAccess::Mapped)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
