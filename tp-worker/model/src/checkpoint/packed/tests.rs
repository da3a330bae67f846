use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    sync::Barrier,
    thread,
};

use lockstep_backend::{
    CheckpointDtype, GroupFormat, HostBlock, HostFloats, HostMatrix, Memory as _, WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_collective::Single;
use lockstep_types::{
    CheckpointFormat, Dtype, FactorType, Fp8Checkpoint, IntegerCheckpoint, IntegerForm,
    IntegerLayout, ModelConfig, ModuleForm, Mxfp4Checkpoint, Quantization,
};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{Shard, Topology, models::decoder::Decoder};

/// A device, and the format of the matrices that are packed for it.
struct Packing {
    device: CpuBackend,
    format: WeightFormat,
}

fn packing(dtype: Dtype, format: WeightFormat) -> Packing {
    let device = backend(dtype);
    Packing { device, format }
}

fn packing_floats() -> Packing {
    packing(Dtype::Bfloat16, WeightFormat::Float)
}

fn backend(dtype: Dtype) -> CpuBackend {
    let options = CpuOptions {
        threads: 2,
        dtype,
        pin: None,
        isa: None,
    };
    CpuBackend::new(options, Box::new(Single::new())).unwrap()
}

fn pack(
    Packing { device, format }: &mut Packing,
    seed: u64,
    rows: usize,
    cols: usize,
) -> lockstep_backend_cpu::CpuMatrix {
    let mut bytes = vec![0; 2 * rows * cols];
    let mut random = blake3::Hasher::new();
    random
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    // Values are finite, because the exponent's highest bit is clear.
    bytes
        .as_chunks_mut::<2>()
        .0
        .iter_mut()
        .for_each(|[_, high]| *high &= 0xbf);
    let block = HostBlock {
        bytes: &bytes,
        offset: 0,
        stride: 2 * cols,
        rows,
    };
    let matrix = HostMatrix::Floats(HostFloats {
        cols,
        dtype: CheckpointDtype::Bf16,
        blocks: vec![block],
    });
    device.load_matrix(&matrix, *format).unwrap()
}

const KEY: Hash = Hash::from_bytes([7; 32]);

fn cache(folder: &TempDir) -> Cache {
    Cache {
        folder: Folder::open(&folder.path().join("packed")).unwrap(),
        key: KEY,
        name: "weights.packed".into(),
        stamps: Vec::new(),
    }
}

/// Writes matrices `[rows, cols]`, numbered from `seed` on.
fn write(cache: &Cache, packing: &mut Packing, seed: u64, shapes: &[(usize, usize)]) {
    let mut writer = cache.writer().unwrap();
    for (number, (rows, cols)) in shapes.iter().enumerate() {
        let matrix = pack(packing, seed + number as u64, *rows, *cols);
        writer
            .add(*rows, *cols, packing.device.matrix_data(&matrix))
            .unwrap();
    }
    writer.finish().unwrap();
}

/// Returns true if the packed file holds these matrices. An error says that the file must not
/// be used.
fn compare(
    cache: &Cache,
    packing: &mut Packing,
    seed: u64,
    shapes: &[(usize, usize)],
) -> Result<bool, String> {
    let mut reader = cache.reader()?.ok_or("there is no file")?;
    let mut equal = true;
    for (number, (rows, cols)) in shapes.iter().enumerate() {
        let restored = reader.restore(&mut packing.device, *rows, *cols, packing.format);
        let restored = restored.map_err(|why| format!("{why:?}"))?;
        let packed = pack(packing, seed + number as u64, *rows, *cols);
        let device = &packing.device;
        equal &= device.matrix_data(&restored) == device.matrix_data(&packed);
    }
    Ok(equal)
}

/// Shapes of the matrices. The second one is larger than one segment.
const SHAPES: [(usize, usize); 4] = [(33, 7), (1_030, 2_100), (1, 1), (64, 128)];

#[test]
fn restored_matrices_are_the_packed_ones() {
    for (dtype, format) in [
        (Dtype::Bfloat16, WeightFormat::Float),
        (Dtype::Float32, WeightFormat::Float),
        (Dtype::Bfloat16, WeightFormat::Int8),
        (Dtype::Bfloat16, WeightFormat::Int4),
        (Dtype::Bfloat16, WeightFormat::Fp8 { group: 128 }),
        (Dtype::Float32, WeightFormat::Fp8 { group: 16 }),
        (Dtype::Bfloat16, WeightFormat::Mxfp4),
        (Dtype::Bfloat16, WeightFormat::Groups(GroupFormat::ANY)),
    ] {
        let (folder, mut packing) = (tempfile::tempdir().unwrap(), packing(dtype, format));
        let cache = cache(&folder);
        assert!(cache.reader().unwrap().is_none());
        write(&cache, &mut packing, 0, &SHAPES);
        assert_eq!(compare(&cache, &mut packing, 0, &SHAPES), Ok(true));
        assert_eq!(compare(&cache, &mut packing, 1, &SHAPES), Ok(false));
        let mode = fs::metadata(cache.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Nothing else is left, and a new file takes the old one's place.
        write(&cache, &mut packing, 1, &SHAPES);
        assert_eq!(compare(&cache, &mut packing, 1, &SHAPES), Ok(true));
        assert_eq!(fs::read_dir(cache.folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn other_shapes_keys_and_owners_are_not_used() {
    let (folder, mut packing) = (tempfile::tempdir().unwrap(), packing_floats());
    let mut cache = cache(&folder);
    write(&cache, &mut packing, 0, &SHAPES[2..]);
    for shapes in [&SHAPES[3..], &SHAPES[1..2], &[(1, 1), (64, 128), (1, 1)]] {
        assert!(
            compare(&cache, &mut packing, 0, shapes).is_err(),
            "{shapes:?}"
        );
    }
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o622)).unwrap();
    let error = cache.reader().unwrap_err();
    assert!(error.contains("others can change it"), "{error}");
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(compare(&cache, &mut packing, 0, &SHAPES[2..]), Ok(true));
    cache.key = Hash::from_bytes([8; 32]);
    assert!(cache.reader().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A changed bit is found, unless it lies between two matrices and changes neither. A
    /// shortened file is always found.
    #[test]
    fn damage_is_found(place in 0.0..1.0f64, bit in 0..8u32, cut: bool) {
        const SMALL: [(usize, usize); 2] = [(33, 7), (1, 1)];
        let (folder, mut packing) = (tempfile::tempdir().unwrap(), packing_floats());
        let cache = cache(&folder);
        write(&cache, &mut packing, 0, &SMALL);
        let file = fs::OpenOptions::new().read(true).write(true).open(cache.path()).unwrap();
        let at = (file.metadata().unwrap().len() as f64 * place) as u64;
        if cut {
            file.set_len(at).unwrap();
            prop_assert!(compare(&cache, &mut packing, 0, &SMALL).is_err());
        } else {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
            let found = compare(&cache, &mut packing, 0, &SMALL);
            prop_assert!(found.is_err() || found == Ok(true), "byte {} {:?}", at, found);
            // The first matrix has two panels of 32 rows of 4 steps, the second one of 1
            // step.
            let inside = (4096..4096 + 1024).contains(&at) || (8192..8192 + 128).contains(&at);
            prop_assert!(found.is_err() || !(inside || at < 4096));
        }
    }
}

#[test]
fn writers_at_the_same_time_do_no_harm() {
    let (folder, start) = (tempfile::tempdir().unwrap(), Barrier::new(4));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (cache, mut packing) = (cache(&folder), packing_floats());
                start.wait();
                write(&cache, &mut packing, 0, &SHAPES);
                assert_eq!(compare(&cache, &mut packing, 0, &SHAPES), Ok(true));
            });
        }
    });
    assert_eq!(
        fs::read_dir(cache(&folder).folder.path()).unwrap().count(),
        1
    );
}

#[test]
fn only_what_nobody_writes_any_more_is_swept_away() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(&folder);
    let left = cache.folder.path().join(".old.packed.1-0.tmp");
    fs::write(&left, "half a file").unwrap();
    let foreign = cache.folder.path().join("notes.tmp");
    fs::write(&foreign, "not ours").unwrap();
    let being_written = cache.folder.temporary("other").unwrap();
    cache.writer().unwrap();
    assert!(!left.exists() && foreign.exists());
    being_written.keep().unwrap();
    assert!(cache.folder.path().join("other").exists());
}

#[test]
fn keys_follow_from_everything_that_is_packed() {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lockstep-demo-7m");
    let model = lockstep_model_folder::load(Path::new(repository)).unwrap();
    let split = |model: &ModelConfig, rank, size, dp_size, forms: &str, content: u8| {
        let topology = Topology::new(rank, size, dp_size);
        let listed = Decoder::listed(model, &Shard::new(model, topology).unwrap());
        key::key(&listed, topology, forms, &Hash::from_bytes([content; 32]))
    };
    let of = |model: &ModelConfig, rank, size, forms: &str, content| {
        split(model, rank, size, 1, forms, content)
    };
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/architectures/mixtral"
    );
    let mixture = lockstep_model_folder::load(Path::new(fixture)).unwrap();
    let mut by_number = [(0, 1), (1, 1), (0, 2), (1, 2)].map(|(rank, groups)| {
        let topology = Topology::new(rank, 2, 1).with_experts(groups);
        let listed = Decoder::listed(&mixture, &Shard::new(&mixture, topology).unwrap());
        key::key(&listed, topology, "bf16", &Hash::from_bytes([0; 32])).to_hex()
    });
    by_number.sort();
    assert!(by_number.windows(2).all(|pair| pair[0] != pair[1]));
    let elsewhere = ModelConfig {
        path: "elsewhere".into(),
        ..model.clone()
    };
    let untied = ModelConfig {
        tie_word_embeddings: !model.tie_word_embeddings,
        ..model.clone()
    };
    let first = of(&model, 0, 1, "bf16", 0);
    assert_eq!(first, of(&elsewhere, 0, 1, "bf16", 0));
    let mut all = vec![
        first,
        of(&model, 0, 2, "bf16", 0),
        of(&model, 1, 2, "bf16", 0),
        split(&model, 0, 2, 2, "bf16", 0),
        split(&model, 1, 2, 2, "bf16", 0),
        of(&model, 0, 1, "f32", 0),
        of(&model, 0, 1, "bf16", 1),
        of(&untied, 0, 1, "bf16", 0),
    ];
    all.sort_by_key(Hash::to_hex);
    all.dedup();
    assert_eq!(all.len(), 8);
    let forms = [
        (Dtype::Bfloat16, Quantization::None),
        (Dtype::Float32, Quantization::None),
        (Dtype::Bfloat16, Quantization::Int8),
        (Dtype::Bfloat16, Quantization::Int4),
    ]
    .map(|(dtype, quantization)| {
        let model = ModelConfig {
            quantization,
            ..model.clone()
        };
        key::forms(&backend(dtype), &model).unwrap()
    });
    let of_blocks = |block| {
        let fp8 = CheckpointFormat::Fp8(Fp8Checkpoint {
            block: Some(block),
            mixed: false,
            floats: Vec::new(),
        });
        let fp8 = ModelConfig {
            checkpoint: fp8,
            ..model.clone()
        };
        key::forms(&backend(Dtype::Bfloat16), &fp8).unwrap()
    };
    // Both share a scale between 128 inputs, and not between the same rows.
    let fp8 = of_blocks([128, 128]);
    assert_ne!(fp8, of_blocks([96, 128]));
    assert!(
        fp8.starts_with("projection cpu-panel32-fp8-128-v1, vocabulary cpu-panel32-bf16-v1"),
        "{fp8}"
    );
    let mxfp4 = ModelConfig {
        checkpoint: CheckpointFormat::Mxfp4(Mxfp4Checkpoint { floats: Vec::new() }),
        ..model.clone()
    };
    let mxfp4 = key::forms(&backend(Dtype::Bfloat16), &mxfp4).unwrap();
    assert!(
        mxfp4.starts_with("projection cpu-panel32-mxfp4-v1, vocabulary cpu-panel32-bf16-v1"),
        "{mxfp4}"
    );
    // Nothing but the configuration tells the versions of a format apart.
    let integers = [true, false].map(|less_one| {
        let checkpoint = integers(IntegerLayout::Gptq { less_one });
        let integers = ModelConfig {
            checkpoint,
            ..model.clone()
        };
        key::forms(&backend(Dtype::Bfloat16), &integers).unwrap()
    });
    assert_ne!(integers[0], integers[1]);
    let on_cpu = |projection: &str, vocabulary: &str| {
        let endian = if cfg!(target_endian = "big") {
            "big"
        } else {
            "little"
        };
        format!(
            "projection cpu-panel32-{projection}-v1, vocabulary cpu-panel32-{vocabulary}-v1, \
             {endian} endian"
        )
    };
    // Files of earlier versions have these forms in their keys.
    let known = [
        on_cpu("bf16", "bf16"),
        on_cpu("f32", "f32"),
        on_cpu("int8", "int8"),
        on_cpu("int4", "int8"),
    ];
    assert_eq!(forms, known);
}

/// A checkpoint of integers of 4 bits, with a scale for 128 inputs.
fn integers(layout: IntegerLayout) -> CheckpointFormat {
    let form = IntegerForm {
        bits: 4,
        group: Some(128),
        zeros: false,
        scales: FactorType::F16,
        scattered: false,
    };
    CheckpointFormat::Integers(IntegerCheckpoint {
        layout,
        bits: vec![4],
        groups: vec![Some(128)],
        zeros: vec![false],
        forms: vec![ModuleForm::Integers(form)],
        others: BTreeMap::new(),
        fp8: None,
    })
}

/// Files that were packed by earlier versions are found again.
#[test]
#[cfg(target_endian = "little")]
fn keys_stay_as_they_were() {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lockstep-demo-7m");
    let model = lockstep_model_folder::load(Path::new(repository)).unwrap();
    let source = crate::checkpoint::source::open(&model, crate::FileAccess::Mapped).unwrap();
    let (folder, device) = (tempfile::tempdir().unwrap(), backend(Dtype::Bfloat16));
    let expected = [
        (
            Quantization::None,
            0,
            1,
            "6785df107a0e047d543bae8e-rank0of1",
        ),
        (
            Quantization::None,
            1,
            2,
            "e5542db00c827b9793ff5ed9-rank1of2",
        ),
        (
            Quantization::Int8,
            0,
            1,
            "4ed1ba069f2f9ec508872772-rank0of1",
        ),
        (
            Quantization::Int4,
            0,
            1,
            "a0f157e1e4f4fc46838fb76a-rank0of1",
        ),
        (
            Quantization::Int4,
            1,
            2,
            "c70264ef96ad8f196b750b2b-rank1of2",
        ),
    ];
    let found = expected.map(|(quantization, rank, size, _)| {
        let topology = Topology::new(rank, size, 1);
        let listed = Decoder::listed(&model, &Shard::new(&model, topology).unwrap());
        let model = ModelConfig {
            quantization,
            ..model.clone()
        };
        let forms = key::forms(&device, &model).unwrap();
        let (source, progress) = (source.as_ref(), &mut |_| {});
        let path = folder.path();
        let opened = Cache::open(path, &forms, &listed, topology, source, progress);
        opened.unwrap().0.name
    });
    let expected = expected.map(|(.., name)| format!("{name}.packed"));
    assert_eq!(found, expected);
}
