//! Weights that are read while the server runs, from files that somebody writes to.

use std::fs;

use lockstep_model::{FileAccess, LoadOptions, ModelError};
use lockstep_types::Dtype;

use crate::loader::{copy_of, demo, load, options};

const FILE: &str = "model.safetensors";

#[test]
fn what_is_read_is_what_is_mapped() {
    let model = demo();
    // A rank alone has whole rows, one of two has parts of rows too.
    for of in [(0, 1), (0, 2), (1, 2)] {
        let [mapped, read] = [FileAccess::Mapped, FileAccess::Read].map(|files| {
            let folder = tempfile::tempdir().unwrap();
            let options = LoadOptions {
                cache: Some(folder.path()),
                files,
                ..options()
            };
            let loaded = load(&model, Dtype::Float32, of, options, &mut |_| {});
            let (_, transformer) = loaded.unwrap();
            let packed = transformer.weight_origin().file.clone();
            fs::read(packed.unwrap()).unwrap()
        });
        assert!(mapped == read, "{of:?}");
    }
}

#[test]
fn a_file_that_is_truncated_meanwhile_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy_of(&demo(), folder.path());
    let path = folder.path().join(FILE);
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let mut truncate = |_| file.set_len(4096).unwrap();
    let options = LoadOptions {
        files: FileAccess::Read,
        ..options()
    };
    let loaded = load(&model, Dtype::Float32, (0, 1), options, &mut truncate);
    let error = loaded.err().unwrap();
    assert!(
        matches!(&error, ModelError::Read { file, .. } if file.ends_with(FILE)),
        "{error}"
    );
}
