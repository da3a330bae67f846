//! Weights that are packed once and read at later starts.

use std::{fs, os::unix::fs::FileExt, path::Path};

use lockstep_model::{LoadOptions, LoadPhase, LogitBlock, WeightOrigin};
use lockstep_types::{Dtype, KvCacheDtype, ModelConfig};

use crate::{
    loader::{self, copy_of, demo},
    pass::{Pass, fixture},
};

struct Loaded {
    origin: WeightOrigin,
    phases: Vec<LoadPhase>,
    bytes: usize,
    /// Logits of a short text; empty with several ranks.
    logits: Vec<f32>,
}

/// Loads rank `rank` of `size`.
fn load(model: &ModelConfig, rank: usize, size: usize, cache: Option<&Path>) -> Loaded {
    load_watched(model, rank, size, cache, &mut |_| {})
}

/// Loads rank `rank` of `size`, and calls `watch` at every step of loading.
fn load_watched(
    model: &ModelConfig,
    rank: usize,
    size: usize,
    cache: Option<&Path>,
    watch: &mut dyn FnMut(LoadPhase),
) -> Loaded {
    let mut phases = Vec::new();
    let mut progress = |at: lockstep_model::LoadProgress| {
        assert!(at.done <= at.total);
        phases.push(at.phase);
        watch(at.phase);
    };
    let options = LoadOptions {
        cache,
        ..loader::options()
    };
    let of = (rank, size);
    let loaded = loader::load(model, Dtype::Bfloat16, of, options, &mut progress);
    let (mut backend, mut transformer) = loaded.unwrap();
    phases.dedup();
    let mut logits = Vec::new();
    if size == 1 {
        let mut kv = transformer
            .kv_cache(&mut backend, 4, 8, KvCacheDtype::Bfloat16)
            .unwrap();
        let mut pass = Pass::default();
        pass.push(&[1, 2, 3, 4, 5], 0..5, 8, |page| page as u32);
        let mut sink = |block: LogitBlock<'_>| logits.extend_from_slice(block.logits);
        let batch = pass.batch(&[0, 2, 4]);
        transformer
            .forward(&mut backend, &mut kv, &batch, None, &mut sink)
            .unwrap();
    }
    Loaded {
        origin: transformer.weight_origin().clone(),
        bytes: transformer.weight_bytes(&backend),
        phases,
        logits,
    }
}

#[test]
fn a_second_start_reads_what_the_first_packed() {
    let (folder, model) = (tempfile::tempdir().unwrap(), demo());
    let cache = folder.path().join("made/for/it");
    let plain = load(&model, 0, 1, None);
    assert_eq!(plain.origin, WeightOrigin::default());
    let first = load(&model, 0, 1, Some(&cache));
    let second = load(&model, 0, 1, Some(&cache));
    assert!(!first.origin.restored && second.origin.restored);
    assert!(first.phases.contains(&LoadPhase::Packing));
    assert_eq!(second.phases.last(), Some(&LoadPhase::Restoring));
    assert!(!second.phases.contains(&LoadPhase::Packing));
    assert!(first.origin.file.is_some() && first.origin.file == second.origin.file);
    for loaded in [&first, &second] {
        assert_eq!(loaded.origin.warnings, Vec::<String>::new());
        assert_eq!(loaded.bytes, plain.bytes);
        assert!(loaded.logits == plain.logits && !plain.logits.is_empty());
    }
}

#[test]
fn every_rank_has_a_file_of_its_own() {
    for name in [
        "qwen3",
        "qwen3_moe",
        "glm4_moe",
        "granite_moe",
        "gpt_oss",
        "gpt_oss_mxfp4",
        "deepseek_v3",
        "deepseek_v3_fp8",
    ] {
        ranks_have_files(name);
    }
}

fn ranks_have_files(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let model = lockstep_model_folder::load(&fixture(name)).unwrap();
    let mut files: Vec<_> = [(0, 1), (0, 2), (1, 2)]
        .into_iter()
        .flat_map(|(rank, size)| {
            let first = load(&model, rank, size, Some(folder.path()));
            let second = load(&model, rank, size, Some(folder.path()));
            assert!(!first.origin.restored && second.origin.restored);
            second.origin.file
        })
        .collect();
    files.sort();
    files.dedup();
    assert_eq!(files.len(), 3);
}

#[test]
fn a_damaged_file_is_packed_anew() {
    let (folder, model) = (tempfile::tempdir().unwrap(), demo());
    let good = load(&model, 0, 1, Some(folder.path()));
    let path = good.origin.file.unwrap();
    let length = fs::metadata(&path).unwrap().len();
    let open = || fs::OpenOptions::new().write(true).open(&path).unwrap();
    let damages: [&dyn Fn(); 3] = [
        // Some way into the last matrices.
        &|| open().write_all_at(b"damage", length - length / 8).unwrap(),
        &|| open().set_len(length / 2).unwrap(),
        &|| fs::write(&path, "").unwrap(),
    ];
    for damage in damages {
        damage();
        let loaded = load(&model, 0, 1, Some(folder.path()));
        assert!(!loaded.origin.restored);
        let [warning] = &loaded.origin.warnings[..] else {
            panic!("{:?}", loaded.origin.warnings);
        };
        assert!(warning.contains("packed anew"), "{warning}");
        assert!(loaded.logits == good.logits);
        let again = load(&model, 0, 1, Some(folder.path()));
        assert!(again.origin.restored && again.logits == good.logits);
    }
}

#[test]
fn a_checkpoint_overwritten_while_it_is_packed_leaves_no_file() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = copy_of(&demo(), copy.path());
    let weights = copy.path().join("model.safetensors");
    let mut done = false;
    let loaded = load_watched(&model, 0, 1, Some(folder.path()), &mut |phase| {
        if phase == LoadPhase::Packing && !done {
            let file = fs::OpenOptions::new().write(true).open(&weights).unwrap();
            let length = file.metadata().unwrap().len();
            file.write_all_at(&[0x55], length - 1001).unwrap();
            done = true;
        }
    });
    assert!(done && loaded.origin.file.is_none());
    let warnings = loaded.origin.warnings.join(" ");
    assert!(
        warnings.contains("changed while it was packed"),
        "{warnings}"
    );
    let packed = fs::read_dir(folder.path()).unwrap();
    let packed = packed.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().ends_with(".packed")
    });
    assert_eq!(packed.count(), 0);
}

#[test]
fn another_checkpoint_is_not_taken_for_this_one() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let original = demo();
    let model = copy_of(&original, copy.path());
    let first = load(&model, 0, 1, Some(folder.path()));
    // The same content elsewhere is the same checkpoint.
    let moved = load(&original, 0, 1, Some(folder.path()));
    assert!(moved.origin.restored && moved.origin.file == first.origin.file);
    // One changed byte, size and date as they were.
    let weights = copy.path().join("model.safetensors");
    let date = fs::metadata(&weights).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&weights).unwrap();
    let length = file.metadata().unwrap().len();
    file.write_all_at(&[0x55], length - 1001).unwrap();
    file.set_modified(date).unwrap();
    let changed = load(&model, 0, 1, Some(folder.path()));
    assert!(!changed.origin.restored && changed.origin.file != first.origin.file);
}

#[test]
fn a_folder_that_cannot_be_is_a_warning() {
    let (folder, model) = (tempfile::tempdir().unwrap(), demo());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let loaded = load(&model, 0, 1, Some(&file.join("below")));
    assert_eq!((loaded.origin.file, loaded.origin.restored), (None, false));
    let [warning] = &loaded.origin.warnings[..] else {
        panic!("{:?}", loaded.origin.warnings);
    };
    assert!(warning.contains("no packed weights are kept"), "{warning}");
    assert!(loaded.logits == load(&model, 0, 1, None).logits);
}

/// The packed file can be written but not kept, as on a full disk.
#[test]
fn a_file_that_cannot_be_written_is_a_warning_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = lockstep_model_folder::load(&fixture("qwen3")).unwrap();
    let good = load(&model, 0, 1, Some(folder.path()));
    let path = good.origin.file.unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let loaded = load(&model, 0, 1, Some(folder.path()));
    assert_eq!((loaded.origin.file, loaded.origin.restored), (None, false));
    let warnings = loaded.origin.warnings.join("\n");
    assert!(warnings.contains("is not written"), "{warnings}");
    assert!(loaded.logits == good.logits);
    let names = fs::read_dir(folder.path()).unwrap();
    let left: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".tmp"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}
