use lockstep_types::{CodeTable, GroupFormat};

use super::*;
use crate::HostJoined;

/// Blocks of 256 values of each type, and the values that ggml makes of them
/// (`tests/fixtures/make_gguf.py`).
const GOLDEN: &[u8] = include_bytes!("../../../../../tests/fixtures/gguf/blocks.bin");

/// Types in the golden's order, each with its blocks and values.
fn golden() -> Vec<(BlockType, &'static [u8], Vec<f32>)> {
    let mut rest = GOLDEN;
    let mut all = Vec::new();
    for kind in BlockType::ALL {
        let (blocks, behind) = rest.split_at(256 / kind.elements() * kind.bytes());
        let (values, behind) = behind.split_at(256 * 4);
        let values = values
            .as_chunks()
            .0
            .iter()
            .map(|own| f32::from_le_bytes(*own));
        all.push((kind, blocks, values.collect()));
        rest = behind;
    }
    assert!(rest.is_empty());
    all
}

/// A matrix of one row, of which `cols` columns from `first` on are used.
fn row(kind: BlockType, bytes: &[u8], first: usize, cols: usize) -> HostGguf<'_> {
    let block = HostBlock {
        bytes,
        offset: first / kind.elements() * kind.bytes(),
        stride: bytes.len(),
        rows: 1,
    };
    HostGguf {
        kind,
        cols,
        skipped: first % kind.elements(),
        blocks: vec![block],
        tensors: vec!["x".into()],
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_type_has_the_values_of_ggml_in_all_bits() {
    for (kind, blocks, values) in golden() {
        for (first, from, count) in [
            (0, 0, 256),
            (0, 1, 255),
            (48, 16, 70),
            (32, 0, 17),
            (250, 3, 3),
        ] {
            let matrix = row(kind, blocks, first, 256 - first);
            let mut found = vec![f32::NAN; count];
            matrix.read(0, from, &mut found);
            let expected = &values[first + from..][..count];
            assert_eq!(bits(&found), bits(expected), "{kind:?} {first} {from}");
        }
    }
}

/// Codes and steps say the same as the values.
#[test]
fn codes_and_steps_make_the_values() {
    for (kind, blocks, values) in golden() {
        let GroupFormat {
            group,
            codes: numbers,
            bits,
            ..
        } = kind.group_format();
        let mut codes = [0; 256];
        let matrix = row(kind, blocks, 0, 256);
        matrix.codes(0, 0, &mut codes);
        let mut steps = vec![GroupStep::default(); 256 / group];
        matrix.steps(0, 0, &mut steps);
        let integer = |code: i8| match numbers {
            Codes::Integers => i32::from(code),
            Codes::Table(table) => entry(table, code),
        };
        for (col, expected) in values.iter().enumerate() {
            let value = steps[col / group].value(integer(codes[col]));
            assert_eq!(value, *expected, "{kind:?} {col}");
        }
        let range = match (bits, kind.group_format().minimum, numbers) {
            (4, lockstep_types::Minimum::None, Codes::Integers) => -8..=7,
            (4, ..) => 0..=15,
            _ => -128..=127,
        };
        assert!(
            codes.iter().all(|code| range.contains(&i32::from(*code))),
            "{kind:?}"
        );
        // A part that begins inside of a block has the steps of its own columns.
        let part = row(kind, blocks, 64, 128);
        let mut own = vec![GroupStep::default(); 64 / group];
        part.steps(0, 32, &mut own);
        assert_eq!(own, steps[96 / group..][..64 / group], "{kind:?}");
    }
}

fn entry(table: CodeTable, code: i8) -> i32 {
    i32::from(table.values()[code as usize & 15])
}

#[test]
fn rows_of_two_types_lie_below_each_other() {
    let all = golden();
    let of = |kind: BlockType| {
        let (kind, blocks, values) = all.iter().find(|own| own.0 == kind).expect("there");
        (HostMatrix::Gguf(row(*kind, blocks, 0, 256)), values.clone())
    };
    let ((mut both, first), (other, second)) = (of(BlockType::Q4_K), of(BlockType::IQ4_NL));
    both.append(other);
    let HostMatrix::Joined(HostJoined { parts }) = &both else {
        panic!("types differ");
    };
    assert_eq!((parts.len(), both.rows(), both.missing_row()), (2, 2, None));
    let groups = both.groups().expect("integers in groups");
    let format = groups.group_format();
    for (number, expected) in [first, second].iter().enumerate() {
        let (mut codes, mut step) = ([0; 256], [GroupStep::default()]);
        groups.codes(number, 0, &mut codes);
        for (col, expected) in expected.iter().enumerate() {
            groups.steps(number, col / format.group * format.group, &mut step);
            assert_eq!(
                step[0].value(codes[col].into()),
                *expected,
                "{number} {col}"
            );
        }
    }
}

#[test]
fn factors_that_are_no_numbers_are_found() {
    for (kind, blocks, _) in golden() {
        let mut blocks = blocks.to_vec();
        let whole = HostMatrix::Gguf(row(kind, &blocks, 0, 256));
        assert_eq!(whole.wrong_tensor(), None, "{kind:?}");
        if kind == BlockType::MXFP4 {
            continue;
        }
        let at = match kind {
            BlockType::Q6_K => blocks.len() - 2,
            _ => blocks.len() - kind.bytes(),
        };
        blocks[at..at + 2].copy_from_slice(&[0, 0x7c]);
        let wrong = HostMatrix::Gguf(row(kind, &blocks, 0, 256));
        assert_eq!(wrong.wrong_tensor(), Some("x"), "{kind:?}");
    }
}
