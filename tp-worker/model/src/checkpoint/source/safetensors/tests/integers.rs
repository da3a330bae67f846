//! Matrices of integers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use lockstep_backend::{Codes, GroupFormat, GroupStep, MatrixRole, Minimum, WeightFormat};
use lockstep_types::{FactorType, IntegerForm, IntegerLayout, ModuleForm};

use super::*;
use crate::blocks::parts::MatrixPart;

fn fixture(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    repository.join("tests/fixtures/architectures").join(name)
}

const FIXTURES: [&str; 5] = [
    "llama_gptq",
    "qwen2_gptq_act_order",
    "deepseek_v3_awq",
    "qwen3_compressed",
    "qwen3_moe_auto_round",
];

/// Rows, columns and the hash of values of each module, from the code of the tool that wrote it.
#[derive(serde::Deserialize)]
struct Golden {
    weights: BTreeMap<String, (usize, usize, String)>,
}

fn values(matrix: &HostMatrix<'_>) -> Vec<f32> {
    let mut all = vec![f32::NAN; matrix.rows() * matrix.cols()];
    for (row, values) in all.chunks_exact_mut(matrix.cols().max(1)).enumerate() {
        matrix.form().read(row, 0, values);
    }
    all
}

/// FNV-1a of the bits of all values.
fn hash(values: &[f32]) -> String {
    let add =
        |hash: u64, value: &f32| (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", values.iter().fold(0xcbf2_9ce4_8422_2325, add))
}

fn part(module: &str, rows: usize, taken: Range<usize>) -> TensorRows {
    TensorRows::of(format!("{module}.weight"), rows, vec![taken])
}

/// Checks that codes and steps are those of `values`, where devices keep the integers. The matrix
/// begins at column `first` of its tensor.
fn check_groups(matrix: &HostMatrix<'_>, values: &[f32], name: &str, first: usize) -> bool {
    let Some(groups) = matrix.groups() else {
        return false;
    };
    let (group, cols) = (groups.group_format().group, matrix.cols());
    for (row, values) in values.chunks_exact(cols).enumerate() {
        let mut codes = vec![99; cols];
        groups.codes(row, 0, &mut codes);
        // From the first column that a group begins with.
        let begin = cols.min(first.next_multiple_of(group) - first);
        let mut steps = vec![GroupStep::default(); (cols - begin).div_ceil(group)];
        groups.steps(row, begin, &mut steps);
        for (col, value) in values.iter().enumerate() {
            let mut own = [GroupStep::default()];
            groups.steps(row, col, &mut own);
            assert_eq!(
                own[0].value(i32::from(codes[col])),
                *value,
                "{name} {row} {col}"
            );
            if col >= begin {
                assert_eq!(own[0], steps[(col - begin) / group], "{name} {row} {col}");
            }
        }
        if groups.group_format().bits == 4 {
            let without = groups.group_format().minimum == Minimum::None;
            let least = if without { -8 } else { 0 };
            assert!(codes.iter().all(|code| (least..least + 16).contains(code)));
        }
    }
    true
}

#[test]
fn values_are_those_of_the_tools_that_wrote_them() {
    for name in FIXTURES {
        let folder = fixture(name);
        let text = fs::read(folder.join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_slice(&text).unwrap();
        let model = lockstep_model_folder::load(&folder).unwrap();
        let opened = Safetensors::open(&folder, FileAccess::Mapped).unwrap();
        let opened = opened.in_format(&model.checkpoint);
        let mut kept = 0;
        for (module, (rows, cols, expected)) in &golden.weights {
            let whole = part(module, *rows, 0..*rows);
            let found = opened.matrix(&whole, *cols, &(0..*cols)).unwrap();
            let values = values(&found);
            assert_eq!(hash(&values), *expected, "{name} {module}");
            kept += usize::from(check_groups(&found, &values, module, 0));
        }
        let floats = if name == "qwen3_compressed" { 2 } else { 0 };
        let expected = match name {
            // Inputs of groups lie apart.
            "qwen2_gptq_act_order" => 0,
            _ => golden.weights.len() - floats,
        };
        assert_eq!(kept, expected, "{name}");
    }
}

/// Weights that are exchanged while the server runs are read, and not mapped. Rows and columns
/// begin inside of words and groups.
#[test]
fn parts_that_are_read_are_those_that_are_mapped() {
    for (name, module) in [
        ("llama_gptq", "model.layers.0.mlp.down_proj"),
        ("qwen2_gptq_act_order", "model.layers.0.mlp.down_proj"),
        ("deepseek_v3_awq", "model.layers.0.mlp.down_proj"),
        ("qwen3_compressed", "model.layers.0.mlp.down_proj"),
        ("qwen3_compressed", "model.layers.0.self_attn.q_proj"),
        ("qwen3_compressed", "model.layers.0.mlp.up_proj"),
    ] {
        let folder = fixture(name);
        let text = fs::read(folder.join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_slice(&text).unwrap();
        let (rows, cols, _) = golden.weights[module];
        let model = lockstep_model_folder::load(&folder).unwrap();
        let [mapped, read] = [FileAccess::Mapped, FileAccess::Read].map(|access| {
            let opened = Safetensors::open(&folder, access).unwrap();
            opened.in_format(&model.checkpoint)
        });
        let whole = part(module, rows, 0..rows);
        let all = values(&mapped.matrix(&whole, cols, &(0..cols)).unwrap());
        let columns = 13..cols - 3;
        let taken = TensorRows {
            step: 2,
            ..TensorRows::of(format!("{module}.weight"), rows, vec![13..42, 0..3])
        };
        let found = read.matrix(&taken, cols, &columns).unwrap();
        let mut bytes = Vec::new();
        let fetched = read.fetch(&found, &mut bytes).unwrap().unwrap();
        let expected = (13..42).step_by(2).chain([0, 2]);
        let expected: Vec<f32> = expected
            .flat_map(|row| all[row * cols + columns.start..row * cols + columns.end].to_vec())
            .collect();
        assert_eq!(values(&fetched), expected, "{name} {module}");
        assert_eq!(
            values(&mapped.matrix(&taken, cols, &columns).unwrap()),
            expected
        );
        check_groups(&fetched, &expected, module, columns.start);
        if name == "deepseek_v3_awq" {
            check_turned(&mapped, module, &all, cols);
        }
    }
}

/// Reads a matrix by its columns.
fn check_turned(opened: &Safetensors, module: &str, all: &[f32], cols: usize) {
    let rows = all.len() / cols;
    let turned = TensorRows {
        turned: Some(cols),
        ..TensorRows::of(format!("{module}.weight"), cols, vec![5..40; 1])
    };
    let found = opened.matrix(&turned, rows, &(3..50)).unwrap();
    assert_eq!((found.rows(), found.cols()), (35, 47));
    for (at, value) in values(&found).into_iter().enumerate() {
        let (output, input) = (3 + at % 47, 5 + at / 47);
        assert_eq!(value, all[output * cols + input]);
    }
    assert!(found.groups().is_none(), "no device keeps them turned");
}

/// Format on a device of rows of some modules of `qwen3_compressed`, one below the other.
fn format(modules: &[&str], columns: Range<usize>) -> WeightFormat {
    let model = lockstep_model_folder::load(&fixture("qwen3_compressed")).unwrap();
    let names = modules.iter().map(|name| format!("model.layers.{name}"));
    let part = MatrixPart {
        tensors: names.map(|name| part(&name, 8, 0..8)).collect(),
        width: 140,
        columns,
        role: MatrixRole::Projection,
    };
    part.format(&model)
}

/// Matrices keep their integers as long as devices have groups that are short enough.
#[test]
fn formats_on_devices_have_the_values_of_all_rows() {
    let groups = |bits, group, minimum| {
        WeightFormat::Groups(GroupFormat {
            bits,
            codes: Codes::Integers,
            group,
            factor_group: group,
            minimum,
            factors: FactorType::Bf16,
        })
    };
    let qkv = |layer: usize| ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj"));
    let ([q0, k0, v0], [q1, k1, v1]) = (qkv(0), qkv(1));
    for (modules, columns, expected) in [
        (
            &[q0.as_str(), &k0, &v0][..],
            0..96,
            groups(4, 32, Minimum::Zero),
        ),
        (&[&q0], 32..64, groups(4, 32, Minimum::Zero)),
        (&[&q0], 48..96, groups(8, 16, Minimum::Zero)),
        (&[&q0], 40..96, WeightFormat::Dequantized),
        // One is no integers.
        (&[&q1, &k1, &v1], 0..96, WeightFormat::Dequantized),
        (&[&v1], 0..96, WeightFormat::Float),
        (
            &["0.self_attn.o_proj"],
            0..96,
            WeightFormat::Fp8 { group: 128 },
        ),
        (&["0.mlp.down_proj"], 0..140, groups(4, 128, Minimum::None)),
        (&["0.mlp.down_proj"], 52..140, groups(4, 128, Minimum::None)),
        (&["0.mlp.gate_proj"], 0..96, groups(8, 128, Minimum::None)),
        // 8 bits hold integers of both widths.
        (
            &["0.mlp.gate_proj", "0.mlp.down_proj"],
            0..96,
            groups(8, 128, Minimum::None),
        ),
        (
            &[&q0, "0.mlp.gate_proj"],
            0..96,
            groups(8, 32, Minimum::Zero),
        ),
    ] {
        assert_eq!(format(modules, columns), expected, "{modules:?}");
    }
}

/// Facts of a configuration about modules of 4 bits.
fn known(layout: IntegerLayout, zeros: &[bool], scattered: bool) -> CheckpointFormat {
    let form = IntegerForm {
        bits: 4,
        group: Some(16),
        zeros: zeros[0],
        scales: FactorType::F16,
        scattered,
    };
    CheckpointFormat::Integers(IntegerCheckpoint {
        layout,
        bits: vec![4],
        groups: vec![Some(16)],
        zeros: zeros.to_vec(),
        forms: vec![ModuleForm::Integers(form)],
        others: BTreeMap::new(),
        fp8: None,
    })
}

type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn words(count: usize, word: u32) -> Vec<u8> {
    word.to_le_bytes().repeat(count)
}

/// A module `[8, 32]` of GPTQ in version 1 with symmetric zero points.
fn gptq() -> Vec<Tensor> {
    let groups = (0..32i32).flat_map(|input| (input / 16).to_le_bytes());
    vec![
        ("x.qweight", Dtype::I32, vec![4, 8], words(32, 0x9999_9999)),
        ("x.qzeros", Dtype::I32, vec![2, 1], words(2, 0x7777_7777)),
        (
            "x.scales",
            Dtype::F16,
            vec![2, 8],
            half::f16::ONE.to_le_bytes().repeat(16),
        ),
        ("x.g_idx", Dtype::I32, vec![32], groups.collect()),
    ]
}

/// A module `[8, 32]` of compressed-tensors.
fn compressed() -> Vec<Tensor> {
    let shape = [8i64, 32].iter().flat_map(|size| size.to_le_bytes());
    vec![
        (
            "x.weight_packed",
            Dtype::I32,
            vec![8, 4],
            words(32, 0x9999_9999),
        ),
        (
            "x.weight_scale",
            Dtype::F16,
            vec![8, 2],
            half::f16::ONE.to_le_bytes().repeat(16),
        ),
        ("x.weight_shape", Dtype::I64, vec![2], shape.collect()),
    ]
}

/// A tensor replaced, or added; without elements it is taken away.
fn with(mut all: Vec<Tensor>, tensor: Tensor) -> Vec<Tensor> {
    all.retain(|(name, ..)| *name != tensor.0);
    if !tensor.3.is_empty() {
        all.push(tensor);
    }
    all
}

/// The first value of the module, or the error.
fn load(tensors: &[Tensor], format: &CheckpointFormat) -> Result<f32, String> {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, *dtype, &shape[..], &bytes[..]))
        .collect();
    let opened = open(&[("model.safetensors", &file(&views))]).unwrap();
    let opened = opened.in_format(format);
    let found = opened.matrix(&part("x", 8, 0..8), 32, &(0..32));
    let found = found.map_err(|error| error.to_string())?;
    assert_eq!(found.wrong_tensor(), None);
    Ok(values(&found)[0])
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let v1 = IntegerLayout::Gptq { less_one: true };
    let v2 = IntegerLayout::Gptq { less_one: false };
    let of_library = IntegerLayout::CompressedTensors;
    let (symmetric, zeros) = (known(v1, &[false], false), known(v1, &[true], false));
    let scattered = known(v1, &[true], true);
    let ordered = || {
        (0..32i32)
            .flat_map(|input| (input % 2).to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let group = |tensor: Vec<u8>| ("x.g_idx", Dtype::I32, vec![32], tensor);
    let odd = |name| (name, Dtype::F32, vec![1], words(1, 0));
    let zero_points = || {
        (
            "x.weight_zero_point",
            Dtype::I32,
            vec![1, 2],
            words(2, 0x8888_8888),
        )
    };
    assert_eq!(load(&gptq(), &symmetric), Ok(1.0));
    assert_eq!(load(&gptq(), &zeros), Ok(1.0));
    assert_eq!(load(&with(gptq(), group(ordered())), &scattered), Ok(1.0));
    assert_eq!(load(&with(gptq(), group(Vec::new())), &symmetric), Ok(1.0));
    assert_eq!(
        load(&compressed(), &known(of_library, &[false], false)),
        Ok(1.0)
    );
    let both = known(of_library, &[true], false);
    assert_eq!(load(&with(compressed(), zero_points()), &both), Ok(1.0));
    for (tensors, format, parts) in [
        (gptq(), known(v2, &[false], false), ["x.qzeros", "`sym`"]),
        (
            with(gptq(), group(ordered())),
            symmetric.clone(),
            ["x.g_idx", "`desc_act`"],
        ),
        (
            with(gptq(), group(words(32, 2))),
            scattered,
            ["x.g_idx", "none of the 2"],
        ),
        (
            with(gptq(), odd("x.perm")),
            symmetric.clone(),
            ["x.perm", "lies beside"],
        ),
        (
            with(gptq(), odd("x.weight")),
            symmetric.clone(),
            ["x.weight", "lies beside"],
        ),
        (
            with(gptq(), ("x.qweight", Dtype::I64, vec![4, 8], words(64, 0))),
            symmetric.clone(),
            ["x.qweight", "I64"],
        ),
        (
            with(gptq(), ("x.qweight", Dtype::I32, vec![8, 8], words(64, 0))),
            symmetric.clone(),
            ["x.qweight", "[4, 8]"],
        ),
        (
            with(gptq(), ("x.qzeros", Dtype::I32, vec![2, 2], words(4, 0))),
            zeros,
            ["x.qzeros", "[2, 1]"],
        ),
        (
            with(gptq(), ("x.scales", Dtype::F16, vec![4, 8], vec![0; 64])),
            symmetric,
            ["x.scales", "4 groups of the 32 inputs"],
        ),
        (
            with(compressed(), zero_points()),
            known(of_library, &[false], false),
            ["x.weight_zero_point", "`symmetric`"],
        ),
        (compressed(), both, ["x.weight_zero_point", "no tensor"]),
        (
            with(
                compressed(),
                ("x.weight_shape", Dtype::I64, vec![2], words(4, 8)),
            ),
            known(of_library, &[false], false),
            ["x.weight_shape", "config.json implies [8, 32]"],
        ),
        (
            with(compressed(), odd("x.weight_global_scale")),
            known(of_library, &[false], false),
            ["x.weight_global_scale", "lies beside"],
        ),
        (gptq(), CheckpointFormat::Floats, ["x.weight", "no tensor"]),
    ] {
        let error = load(&tensors, &format).unwrap_err();
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{parts:?}: {error}"
        );
    }
}

/// AWQ's words hold 8 outputs.
#[test]
fn outputs_of_awq_fill_words() {
    let file = file(&[("x.qweight", Dtype::I32, &[32, 1], &words(32, 0))]);
    let opened = open(&[("model.safetensors", &file)]).unwrap();
    let opened = opened.in_format(&known(IntegerLayout::Awq, &[true], false));
    let error = opened
        .matrix(&part("x", 12, 0..12), 32, &(0..32))
        .unwrap_err();
    assert!(error.to_string().contains("12 outputs"), "{error}");
}
