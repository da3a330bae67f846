//! Products with integers in groups.

use lockstep_backend::{
    CodeTable, Codes, FactorType, GroupFormat, Memory as _, Minimum, WeightFormat,
};
use lockstep_backend_cpu::Isa;
use lockstep_types::Dtype;
use proptest::prelude::*;

use crate::machine::{backend, bits};
use crate::rounded::{Case, GROUP, dequantized, rounded_inputs};

pub const Q4_K: GroupFormat = GroupFormat {
    bits: 4,
    codes: Codes::Integers,
    group: 32,
    factor_group: 256,
    minimum: Minimum::Own,
    factors: FactorType::F16,
};
const Q4_0: GroupFormat = GroupFormat {
    factor_group: 32,
    minimum: Minimum::None,
    ..Q4_K
};
pub const Q6_K: GroupFormat = GroupFormat {
    bits: 8,
    group: 16,
    minimum: Minimum::None,
    ..Q4_K
};

/// Layouts of makers' formats, and others that differ in every respect.
fn formats() -> Vec<GroupFormat> {
    let table = |table| GroupFormat {
        codes: Codes::Table(table),
        ..Q4_0
    };
    let alone = |bits, group, minimum, factors| GroupFormat {
        bits,
        codes: Codes::Integers,
        group,
        factor_group: group,
        minimum,
        factors,
    };
    vec![
        Q4_K,
        Q4_0,
        Q6_K,
        table(CodeTable::Iq4),
        GroupFormat {
            factor_group: 256,
            ..table(CodeTable::Iq4)
        },
        GroupFormat {
            factors: FactorType::Bf16,
            ..table(CodeTable::E2m1)
        },
        alone(4, 32, Minimum::Own, FactorType::F16),
        alone(4, 128, Minimum::Zero, FactorType::F16),
        alone(4, 64, Minimum::None, FactorType::Bf16),
        alone(4, 32, Minimum::Own, FactorType::F32),
        alone(8, 32, Minimum::None, FactorType::F16),
        alone(8, 128, Minimum::Zero, FactorType::Bf16),
        alone(8, 16, Minimum::Own, FactorType::F32),
        GroupFormat { bits: 8, ..Q4_K },
    ]
}

const SHAPES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (1, 127, 33),
    (2, 256, 96),
    (4, 129, 130),
    (5, 515, 31),
    (8, 640, 33),
    (13, 300, 64),
    (17, 385, 64),
    (40, 4_300, 65),
];

/// A third of the shapes for each of the formats, others for the next one.
fn some_shapes() -> impl Iterator<Item = [(usize, usize, usize); 3]> {
    let shapes = |first: usize| [0, 4, 7].map(|next| SHAPES[(first + next) % SHAPES.len()]);
    (0..).map(shapes)
}

#[test]
fn products_are_those_of_the_rounded_values() {
    for (format, shapes) in formats().into_iter().zip(some_shapes()) {
        for (n, cols, rows) in shapes {
            let case = Case::new(n, cols, rows);
            let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
            let w = case.load(&mut backend, WeightFormat::Groups(format));
            let weights = dequantized(&mut backend, &w, rows, cols);
            let out = case.multiply(&mut backend, &w, &case.x);
            // Integers of 8 bits for codes of 4 bits, of 16 for codes of 8.
            let most = if format.bits == 4 { 127.0 } else { 32_639.0 };
            for (i, x) in case.x.chunks_exact(cols).enumerate() {
                let x = rounded_inputs(x, most);
                for j in 0..rows {
                    let (mut sum, mut size) = (f64::from(case.bias[j]), 1.0f64);
                    for (x, w) in x.iter().zip(&weights[j * cols..]) {
                        sum += x * f64::from(*w);
                        // A minimum is as large as all of a group's codes together.
                        size += (x * 2.0).abs();
                    }
                    let groups = 2 * cols.div_ceil(format.group) + 2 * cols.div_ceil(GROUP) + 4;
                    let limit = size * groups as f64 * f64::from(f32::EPSILON);
                    let got = f64::from(out[i * rows + j]);
                    assert!(
                        (got - sum).abs() <= limit,
                        "{format:?} {n} x {cols} x {rows} [{i}, {j}]: {got} instead of {sum}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    for (format, shapes) in formats().into_iter().zip(some_shapes()) {
        for (n, cols, rows) in shapes {
            let case = Case::new(n, cols, rows);
            let plain = bits(&case.run(
                &mut backend(Isa::Scalar, Dtype::Bfloat16, 1),
                WeightFormat::Groups(format),
            ));
            for isa in Isa::available() {
                for (threads, dtype) in [(1, Dtype::Bfloat16), (3, Dtype::Float32)] {
                    let out = case.run(
                        &mut backend(isa, dtype, threads),
                        WeightFormat::Groups(format),
                    );
                    assert_eq!(bits(&out), plain, "{isa} {format:?} {n} x {cols} x {rows}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_row_does_not_depend_on_its_batch(
        n in 1usize..40,
        cols in 1usize..700,
        rows in 1usize..140,
        threads in 1usize..4,
        format: prop::sample::Index,
    ) {
        let case = Case::new(n, cols, rows);
        let formats = formats();
        let format = formats[format.index(formats.len())];
        for isa in Isa::available() {
            let together = case.run(&mut backend(isa, Dtype::Bfloat16, threads), WeightFormat::Groups(format));
            let mut single = backend(isa, Dtype::Bfloat16, 1);
            let w = case.load(&mut single, WeightFormat::Groups(format));
            let rows = case.x.chunks_exact(cols);
            let alone: Vec<f32> = rows
                .flat_map(|row| case.multiply(&mut single, &w, row))
                .collect();
            prop_assert_eq!(bits(&together), bits(&alone), "{} {:?}", isa, format);
        }
    }
}

/// Values of other forms are rounded as well as the bits allow.
#[test]
fn rounded_values_lie_near() {
    let (rows, cols) = (40, 300);
    let case = Case::new(1, cols, rows);
    for format in formats() {
        let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
        let w = case.load(&mut backend, WeightFormat::Groups(format));
        let found = dequantized(&mut backend, &w, rows, cols);
        let square = |x: f32| f64::from(x) * f64::from(x);
        let errors: f64 = found.iter().zip(&case.w).map(|(a, b)| square(a - b)).sum();
        let squares: f64 = case.w.iter().map(|x| square(*x)).sum();
        let error = (errors / squares).sqrt();
        let limit = if format.bits == 4 { 0.13 } else { 0.012 };
        assert!(error < limit, "{format:?}: {error}");
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    let (cols, rows) = (2 * GROUP, 33);
    let mut case = Case::new(2, cols, rows);
    case.w[5 * cols + 3] = f32::INFINITY;
    case.x[cols + 200] = f32::NAN;
    for format in formats() {
        for isa in Isa::available() {
            let out = case.run(
                &mut backend(isa, Dtype::Bfloat16, 1),
                WeightFormat::Groups(format),
            );
            for (j, value) in out[..rows].iter().enumerate() {
                assert_eq!(value.is_finite(), j != 5, "{isa} {format:?} {j}");
            }
            assert!(
                out[rows..].iter().all(|value| value.is_nan()),
                "{isa} {format:?}"
            );
        }
    }
}

#[test]
fn the_description_names_the_weights() {
    let text =
        |format| backend(Isa::Scalar, Dtype::Bfloat16, 1).describe(WeightFormat::Groups(format));
    let expected = "cpu scalar, bf16, 4-bit integer weights, 1 threads";
    assert_eq!(text(Q4_K), expected);
    assert_eq!(text(Q6_K), expected.replace("4-bit", "8-bit"));
}
