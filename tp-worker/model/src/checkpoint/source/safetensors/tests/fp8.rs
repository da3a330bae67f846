//! Matrices of 8-bit floats.

use std::path::Path;

use lockstep_types::Fp8Checkpoint;

use super::*;

mod load;

fn format(block: Option<[usize; 2]>) -> CheckpointFormat {
    CheckpointFormat::Fp8(Fp8Checkpoint {
        block,
        mixed: false,
        floats: Vec::new(),
    })
}

/// Scales of blocks in some tensors, of rows or whole tensors in others.
fn mixed(block: [usize; 2]) -> CheckpointFormat {
    CheckpointFormat::Fp8(Fp8Checkpoint {
        block: Some(block),
        mixed: true,
        floats: Vec::new(),
    })
}

fn values(matrix: &HostMatrix<'_>) -> Vec<f32> {
    let mut all = vec![f32::NAN; matrix.rows() * matrix.cols()];
    for (row, values) in all.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.form().read(row, 0, values);
    }
    all
}

/// Weights that are exchanged while the server runs are read, and not mapped. Rows and columns
/// begin inside of blocks.
#[test]
fn values_that_are_read_are_those_that_are_mapped() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = repository.join("tests/fixtures/architectures/llama_fp8");
    let open = |access| {
        let opened = Safetensors::open(&folder, access).unwrap();
        opened.in_format(&format(Some([128, 128])))
    };
    let name = "model.layers.0.mlp.down_proj.weight".to_owned();
    let part = TensorRows::of(name, 160, vec![120..160, 0..3]);
    let [mapped, read] = [FileAccess::Mapped, FileAccess::Read].map(open);
    let expected = values(&mapped.matrix(&part, 208, &(52..156)).unwrap());
    assert!(expected.iter().all(|x| x.is_finite()));
    assert!(expected.iter().filter(|x| **x != 0.0).count() > expected.len() / 2);
    let found = read.matrix(&part, 208, &(52..156)).unwrap();
    assert!(
        values(&found).iter().all(|x| *x == 0.0),
        "nothing is read yet"
    );
    let mut bytes = Vec::new();
    let fetched = read.fetch(&found, &mut bytes).unwrap().unwrap();
    assert_eq!(values(&fetched), expected);
    assert_eq!(found.bytes(), 43 * 104);
}

/// Rows in steps, and a matrix that lies turned around, have the scales of their places.
#[test]
fn steps_and_turned_matrices_keep_their_scales() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = repository.join("tests/fixtures/architectures/llama_fp8");
    let opened = Safetensors::open(&folder, FileAccess::Mapped).unwrap();
    let opened = opened.in_format(&format(Some([128, 128])));
    let name = || "model.layers.0.mlp.down_proj.weight".to_owned();
    let all = |rows: Range<usize>, columns: &Range<usize>| {
        let part = TensorRows::of(name(), 160, vec![rows]);
        values(&opened.matrix(&part, 208, columns).unwrap())
    };
    let columns = 100..140;
    let rows = all(0..160, &columns);
    let stepped = TensorRows {
        step: 2,
        ..TensorRows::of(name(), 160, vec![121..140, 122..140])
    };
    let found = values(&opened.matrix(&stepped, 208, &columns).unwrap());
    let expected = (121..140).step_by(2).chain((122..140).step_by(2));
    let expected: Vec<f32> = expected
        .flat_map(|row| rows[row * 40..][..40].to_vec())
        .collect();
    assert_eq!(found, expected);
    // Rows 120 to 150 of the tensor are inputs.
    let turned = TensorRows {
        turned: Some(208),
        ..TensorRows::of(name(), 208, vec![columns.clone()])
    };
    let turned = opened.matrix(&turned, 160, &(120..150)).unwrap();
    assert_eq!((turned.rows(), turned.cols()), (40, 30));
    let found = values(&turned);
    for (output, row) in found.chunks(30).enumerate() {
        for (input, value) in (120..).zip(row) {
            assert_eq!(*value, rows[input * 40 + output]);
        }
    }
}

/// A matrix of ones, `[4, 6]`, whose scales have a name, a type, a shape and bytes.
fn ones(scales: (&str, Dtype, &[usize], &[u8])) -> Safetensors {
    let ones = [0x38; 24];
    let file = file(&[("x.weight", Dtype::F8_E4M3, &[4, 6], &ones), scales]);
    open(&[("model.safetensors", &file)]).unwrap()
}

fn whole(tensor: &str) -> TensorRows {
    let all = Range { start: 0, end: 4 };
    TensorRows::of(format!("{tensor}.weight"), 4, vec![all])
}

#[test]
fn scales_have_one_of_three_shapes_and_any_type() {
    let floats =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let rows = floats(&[1.0, 2.0, 3.0, 4.0]);
    let two = half::bf16::from_f32(2.0).to_le_bytes();
    let by_row = |row: usize, _: usize| row as f32 + 1.0;
    let all = |_: usize, _: usize| 2.0;
    let by_block = |row: usize, col: usize| (1 << (row / 3 * 2 + col / 4)) as f32;
    type Expected = fn(usize, usize) -> f32;
    for (name, dtype, shape, bytes, block, expected) in [
        (
            "weight_scale",
            Dtype::F32,
            &[4, 1][..],
            &rows[..],
            None,
            by_row as Expected,
        ),
        ("weight_scale", Dtype::F32, &[4], &rows, None, by_row),
        ("weight_scale", Dtype::BF16, &[], &two, None, all),
        ("weight_scale_inv", Dtype::BF16, &[1], &two, None, all),
        ("weight_scale", Dtype::F8_E8M0, &[1, 1], &[128], None, all),
        (
            "weight_scale_inv",
            Dtype::F8_E8M0,
            &[2, 2],
            &[127, 128, 129, 130],
            Some([3, 4]),
            by_block,
        ),
        (
            "weight_scale",
            Dtype::F8_E8M0,
            &[2, 1, 2, 1],
            &[127, 128, 129, 130],
            Some([3, 4]),
            by_block,
        ),
    ] {
        let stored = ones((&format!("x.{name}"), dtype, shape, bytes)).in_format(&format(block));
        let found = values(&stored.matrix(&whole("x"), 6, &(0..6)).unwrap());
        for (at, value) in found.into_iter().enumerate() {
            assert_eq!(value, expected(at / 6, at % 6), "{name} {shape:?} {at}");
        }
    }
}

#[test]
fn scales_that_do_not_fit_are_refused_by_name() {
    let one = 1f32.to_le_bytes();
    let four = one.repeat(4);
    for (scales, block, parts) in [
        (
            ("y", Dtype::F32, &[1][..], &one[..]),
            None,
            ["x.weight_scale_inv", "[4, 1]"],
        ),
        (
            ("x.weight_scale", Dtype::F32, &[1, 4], &four),
            None,
            ["x.weight_scale", "[1, 4]"],
        ),
        (
            ("x.weight_scale", Dtype::F32, &[1], &one),
            Some([2, 3]),
            ["x.weight_scale", "[2, 2]"],
        ),
        (
            ("x.weight_scale", Dtype::I32, &[1], &one),
            None,
            ["x.weight_scale", "I32"],
        ),
    ] {
        let stored = ones(scales).in_format(&format(block));
        let error = stored
            .matrix(&whole("x"), 6, &(0..6))
            .unwrap_err()
            .to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    // Where config.json does not speak of 8-bit floats they are no weights.
    let stored = ones(("x.weight_scale", Dtype::F32, &[1], &one));
    let error = stored
        .matrix(&whole("x"), 6, &(0..6))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("F8_E4M3") && error.contains("quantization_config"),
        "{error}"
    );
}

#[test]
fn a_mixture_has_scales_of_blocks_and_of_rows() {
    let floats =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let (rows, blocks) = (floats(&[1.0, 2.0, 3.0, 4.0]), floats(&[1.0, 2.0, 4.0, 8.0]));
    type Expected = fn(usize, usize) -> f32;
    let by_row: Expected = |row, _| row as f32 + 1.0;
    let by_block: Expected = |row, col| (1 << (row / 3 * 2 + col / 4)) as f32;
    let all: Expected = |_, _| 1.0;
    for (shape, bytes, expected) in [
        (&[4, 1][..], &rows[..], by_row),
        (&[2, 2], &blocks, by_block),
        (&[], &rows[..4], all),
    ] {
        let stored = ones(("x.weight_scale", Dtype::F32, shape, bytes)).in_format(&mixed([3, 4]));
        let found = values(&stored.matrix(&whole("x"), 6, &(0..6)).unwrap());
        for (at, value) in found.into_iter().enumerate() {
            assert_eq!(value, expected(at / 6, at % 6), "{shape:?} {at}");
        }
        // Without a mixture, scales have the shape that config.json says.
        let stored = ones(("x.weight_scale", Dtype::F32, shape, bytes));
        let found = stored.in_format(&format(Some([3, 4])));
        assert_eq!(
            found.matrix(&whole("x"), 6, &(0..6)).is_ok(),
            *shape == [2, 2]
        );
    }
}

/// A scale with which the largest code is no finite number is none. The least power of two is one.
#[test]
fn scales_that_are_no_finite_numbers_are_refused_by_name() {
    let found = |dtype, bytes: &[u8]| {
        let stored = ones(("x.weight_scale", dtype, &[], bytes)).in_format(&format(None));
        let found = stored.matrix(&whole("x"), 6, &(0..6));
        found
            .map(|matrix| values(&matrix)[0])
            .map_err(|error| error.to_string())
    };
    assert_eq!(found(Dtype::F8_E8M0, &[0]), Ok(f32::from_bits(1 << 22)));
    let refused = |dtype, bytes: &[u8]| {
        let error = found(dtype, bytes).unwrap_err();
        let parts = ["model.safetensors", "x.weight_scale", "no finite number"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(Dtype::F8_E8M0, &[255]);
    for scale in [f32::NAN, f32::INFINITY, 1e38] {
        refused(Dtype::F32, &scale.to_le_bytes());
    }
}

/// Tensors that say that values are something else than codes times scales.
#[test]
fn tensors_beside_weights_are_known_or_refused_by_name() {
    let one = 1f32.to_le_bytes();
    let scale = ("x.weight_scale", Dtype::F32, &[1][..], &one[..]);
    let open_with = |weight, other: &str| {
        let file = file(&[weight, scale, (other, Dtype::F32, &[1], &one)]);
        let opened = open(&[("model.safetensors", &file)]).unwrap();
        let opened = opened.in_format(&format(None));
        let found = opened.matrix(&whole("x"), 6, &(0..6));
        found.map(|_| ()).map_err(|error| error.to_string())
    };
    let codes = [0x38; 24];
    let codes = ("x.weight", Dtype::F8_E4M3, &[4, 6][..], &codes[..]);
    for known in [
        "x.input_scale",
        "x.k_scale",
        "x.bias",
        "x.y.odd",
        "x2.odd",
        "odd",
    ] {
        assert_eq!(open_with(codes, known), Ok(()), "{known}");
    }
    for odd in [
        "x.pre_quant_scale",
        "x.weight_scale_2",
        "x.weight_zero_point",
        "x.weight_scale_inv",
    ] {
        let error = open_with(codes, odd).unwrap_err();
        assert!(
            error.contains(odd) && error.contains("x.weight and"),
            "{error}"
        );
    }
    // Floats have no scales.
    let floats = [0; 48];
    let floats = ("x.weight", Dtype::BF16, &[4, 6][..], &floats[..]);
    let error = open_with(floats, "odd").unwrap_err();
    assert!(
        error.contains("x.weight_scale lies beside x.weight"),
        "{error}"
    );
}

/// Scales may lie in another file than their weight.
#[test]
fn scales_are_found_in_all_files_of_an_index() {
    let index =
        br#"{"weight_map": {"x.weight": "1.safetensors", "x.weight_scale": "2.safetensors"}}"#;
    let codes = file(&[("x.weight", Dtype::F8_E4M3, &[4, 6], &[0x38; 24])]);
    let scales = file(&[("x.weight_scale", Dtype::F32, &[1], &3f32.to_le_bytes())]);
    let opened = open(&[
        ("model.safetensors.index.json", index),
        ("1.safetensors", &codes),
        ("2.safetensors", &scales),
    ]);
    let opened = opened.unwrap().in_format(&format(None));
    let found = opened.matrix(&whole("x"), 6, &(0..6)).unwrap();
    assert_eq!(values(&found), [3.0; 24]);
}
