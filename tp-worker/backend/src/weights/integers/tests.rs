use std::sync::Arc;

use half::f16;

use super::*;
use crate::weights::{CheckpointDtype, GroupStep, HostGroups as _};

const OUTPUTS: usize = 24;
const INPUTS: usize = 48;

/// Integers, zero points and scales of a matrix, one by one.
struct Plain {
    bits: u8,
    codes: Vec<[u8; INPUTS]>,
    zeros: Vec<Vec<u8>>,
    scales: Vec<Vec<f16>>,
    groups: Vec<u32>,
}

impl Plain {
    fn new(bits: u8, groups: Vec<u32>) -> Self {
        let mut state = 7u32;
        let mut number = |most: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % most
        };
        let most = 1 << bits;
        let count = groups.iter().max().unwrap() + 1;
        let mut row = |of: usize| -> Vec<u8> { (0..of).map(|_| number(most) as u8).collect() };
        let codes: Vec<Vec<u8>> = (0..OUTPUTS).map(|_| row(INPUTS)).collect();
        let zeros = (0..OUTPUTS).map(|_| row(count as usize)).collect();
        let scale = |output: usize, group: u32| {
            f16::from_f32(0.013 + 0.21 * (output as f32 + 3.0 * group as f32))
        };
        Self {
            bits,
            codes: codes
                .iter()
                .map(|row| row[..].try_into().unwrap())
                .collect(),
            zeros,
            scales: (0..OUTPUTS)
                .map(|o| (0..count).map(|g| scale(o, g)).collect())
                .collect(),
            groups,
        }
    }

    fn value(&self, output: usize, input: usize, has_zeros: bool) -> f32 {
        let group = self.groups[input] as usize;
        let zero = match has_zeros {
            true => i32::from(self.zeros[output][group]),
            false => 1 << (self.bits - 1),
        };
        (i32::from(self.codes[output][input]) - zero) as f32 * self.scales[output][group].to_f32()
    }
}

/// Words of a matrix `[outputs, inputs]` of integers, packed one by one.
fn packed(rows: &[Vec<u8>], packing: Packing, bits: u8, added: u32) -> (Vec<u8>, usize) {
    let size = packing.order.bytes();
    let per = size * 8 / usize::from(bits);
    let (outputs, inputs) = (rows.len(), rows[0].len());
    let words = |direction, count: usize| match packing.words == direction {
        true => count.div_ceil(per),
        false => count,
    };
    let sizes = [
        words(Direction::Outputs, outputs),
        words(Direction::Inputs, inputs),
    ];
    let (high, wide) = match packing.rows {
        Direction::Outputs => (sizes[0], sizes[1]),
        Direction::Inputs => (sizes[1], sizes[0]),
    };
    let mut all = vec![0u32; high * wide];
    for (output, row) in rows.iter().enumerate() {
        for (input, value) in row.iter().enumerate() {
            let (place, field) = match packing.words {
                Direction::Outputs => ([output / per, input], output % per),
                Direction::Inputs => ([output, input / per], input % per),
            };
            let at = match packing.rows {
                Direction::Outputs => place[0] * wide + place[1],
                Direction::Inputs => place[1] * wide + place[0],
            };
            // Field j of AWQ's words holds output [0, 2, 4, 6, 1, 3, 5, 7][j].
            let field = match packing.order {
                WordOrder::EvenFirst => [0, 2, 4, 6, 1, 3, 5, 7]
                    .iter()
                    .position(|o| *o == field)
                    .unwrap(),
                WordOrder::Byte | WordOrder::Rising => field,
            };
            all[at] |= u32::from(*value) << (field * usize::from(bits));
        }
    }
    let bytes = all
        .iter()
        .flat_map(|word| word.wrapping_sub(added).to_le_bytes()[..size].to_vec());
    (bytes.collect(), wide * size)
}

fn block(bytes: &[u8], width: usize) -> HostBlock<'_> {
    HostBlock {
        bytes,
        offset: 0,
        stride: width,
        rows: bytes.len() / width,
    }
}

/// Layouts of tensors: of the codes, and of zero points.
struct Layout {
    codes: Packing,
    zeros: Packing,
    bits: u8,
    added: u32,
    zeros_added: u32,
}

const fn packing(rows: Direction, words: Direction, order: WordOrder) -> Packing {
    Packing { rows, words, order }
}

fn layouts() -> Vec<Layout> {
    use Direction::{Inputs, Outputs};
    use WordOrder::{Byte, EvenFirst, Rising};
    let layout = |codes, zeros, bits, added, zeros_added| Layout {
        codes,
        zeros,
        bits,
        added,
        zeros_added,
    };
    let along = packing(Outputs, Inputs, Rising);
    let below = packing(Outputs, Outputs, Rising);
    let gptq = (
        packing(Inputs, Inputs, Rising),
        packing(Inputs, Outputs, Rising),
    );
    let awq = packing(Inputs, Outputs, EvenFirst);
    let bytes = packing(Outputs, Inputs, Byte);
    vec![
        layout(along, below, 4, 0, 0),
        layout(along, below, 8, 0, 0),
        layout(gptq.0, gptq.1, 4, 0, 0x1111_1111),
        layout(gptq.0, gptq.1, 8, 0, 0x0101_0101),
        layout(gptq.0, gptq.1, 4, 0, 0),
        layout(awq, awq, 4, 0, 0),
        layout(bytes, bytes, 8, 128, 128),
    ]
}

/// Memory of a matrix in a layout.
struct Stored {
    codes: (Vec<u8>, usize),
    zeros: (Vec<u8>, usize),
    scales: (Vec<u8>, usize),
}

impl Stored {
    fn new(plain: &Plain, layout: &Layout) -> Self {
        let codes: Vec<_> = plain.codes.iter().map(|row| row.to_vec()).collect();
        let count = plain.scales[0].len();
        let scales: Vec<f16> = match layout.codes.rows {
            Direction::Outputs => plain.scales.concat(),
            Direction::Inputs => (0..count * OUTPUTS)
                .map(|at| plain.scales[at % OUTPUTS][at / OUTPUTS])
                .collect(),
        };
        let width = match layout.codes.rows {
            Direction::Outputs => count,
            Direction::Inputs => OUTPUTS,
        };
        Self {
            codes: packed(&codes, layout.codes, layout.bits, layout.added),
            zeros: packed(&plain.zeros, layout.zeros, layout.bits, layout.zeros_added),
            scales: (
                scales
                    .iter()
                    .flat_map(|scale| scale.to_le_bytes())
                    .collect(),
                2 * width,
            ),
        }
    }

    fn matrix(&self, layout: &Layout, groups: InputGroups, has_zeros: bool) -> HostIntegers<'_> {
        HostIntegers {
            outputs: OUTPUTS,
            step: 1,
            inputs: INPUTS,
            codes: words(&self.codes, layout.codes, layout.bits, layout.added),
            scales: GroupScales {
                tensor: Arc::from("x.scales"),
                dtype: CheckpointDtype::F16,
                memory: block(&self.scales.0, self.scales.1),
                width: self.scales.1,
                rows: layout.codes.rows,
                single: false,
            },
            zeros: has_zeros
                .then(|| words(&self.zeros, layout.zeros, layout.bits, layout.zeros_added)),
            groups,
            turned: false,
        }
    }
}

fn words(stored: &(Vec<u8>, usize), packing: Packing, bits: u8, added: u32) -> PackedIntegers<'_> {
    PackedIntegers {
        memory: block(&stored.0, stored.1),
        width: stored.1,
        packing,
        bits,
        added,
        first: [0, 0],
    }
}

/// Groups of 20 inputs, groups that are scattered, and groups of 32 inputs, which devices keep. The
/// last of each is smaller.
fn grouped() -> [(Vec<u32>, InputGroups); 3] {
    let runs = |size: usize| {
        let numbers = (0..INPUTS).map(|input| (input / size) as u32).collect();
        (numbers, InputGroups::Runs { size, skipped: 0 })
    };
    let scattered: Vec<u32> = (0..INPUTS as u32)
        .map(|input| input * 7 % 48 / 20)
        .collect();
    [
        runs(20),
        (scattered.clone(), InputGroups::Scattered(scattered.into())),
        runs(32),
    ]
}

/// Every layout, whole and in parts that begin inside of words and of groups, where it lies and
/// read into other memory.
#[test]
fn parts_have_the_values_of_their_places() {
    for layout in layouts() {
        for (numbers, groups) in grouped() {
            let plain = Plain::new(layout.bits, numbers);
            let stored = Stored::new(&plain, &layout);
            for has_zeros in [true, false] {
                let whole = stored.matrix(&layout, groups.clone(), has_zeros);
                for (outputs, step, inputs) in [
                    (0..OUTPUTS, 1, 0..INPUTS),
                    (3..17, 1, 5..43),
                    (8..16, 1, 24..32),
                    (5..24, 2, 13..48),
                    (6..23, 3, 21..22),
                    (9..9, 1, 0..48),
                ] {
                    let part = whole.part(&outputs, step, &inputs);
                    let taken: Vec<usize> = outputs.step_by(step).collect();
                    check(&plain, &part, &taken, &inputs, has_zeros);
                    let kept = check_codes(&plain, &part, &taken, &inputs, has_zeros);
                    assert_eq!(kept, matches!(groups, InputGroups::Runs { size: 32, .. }));
                    check_moved(&plain, &part, &taken, &inputs, has_zeros);
                }
            }
        }
    }
}

fn check(
    plain: &Plain,
    part: &HostIntegers<'_>,
    taken: &[usize],
    inputs: &Range<usize>,
    has_zeros: bool,
) {
    assert_eq!((part.rows(), part.cols()), (taken.len(), inputs.len()));
    for (row, output) in taken.iter().enumerate() {
        for from in [0, inputs.len() / 3] {
            let mut values = vec![f32::NAN; inputs.len() - from];
            part.read(row, from, &mut values);
            for (input, value) in (inputs.start + from..).zip(values) {
                let expected = plain.value(*output, input, has_zeros);
                assert_eq!(value.to_bits(), expected.to_bits(), "{output} {input}");
            }
        }
    }
}

/// Checks codes and steps where devices keep the groups. Returns false where they don't.
fn check_codes(
    plain: &Plain,
    part: &HostIntegers<'_>,
    taken: &[usize],
    inputs: &Range<usize>,
    has_zeros: bool,
) -> bool {
    let Some(layout) = part.layout() else {
        return false;
    };
    let range = match (layout.bits, has_zeros) {
        (4, true) => 0..=15,
        (4, false) => -8..=7,
        _ => i8::MIN..=i8::MAX,
    };
    for (row, output) in taken.iter().enumerate() {
        let mut codes = vec![99; inputs.len()];
        part.codes(row, 0, &mut codes);
        for (col, code) in codes.into_iter().enumerate() {
            let mut step = [GroupStep::default()];
            part.steps(row, col, &mut step);
            assert!(range.contains(&code), "{code}");
            let value = step[0].value(i32::from(code));
            assert_eq!(value, plain.value(*output, inputs.start + col, has_zeros));
        }
    }
    true
}

/// Reads what a part needs, and nothing else, into other memory.
fn check_moved(
    plain: &Plain,
    part: &HostIntegers<'_>,
    taken: &[usize],
    inputs: &Range<usize>,
    has_zeros: bool,
) {
    let mut bytes = Vec::new();
    for (blocks, width) in part.parts() {
        for block in blocks {
            let rows = (0..block.rows).map(|row| block.row(row, width).unwrap());
            bytes.extend(rows.flatten());
        }
    }
    let HostMatrix::Integers(moved) = part.with_rows(&bytes) else {
        panic!("the form stays");
    };
    check(plain, &moved, taken, inputs, has_zeros);
    let whole = HostMatrix::Integers(moved);
    assert_eq!(
        (whole.bytes(), whole.missing_row()),
        (bytes.len() as u64, None)
    );
}

#[test]
fn turned_matrices_are_read_by_inputs() {
    let layout = &layouts()[5];
    let [(numbers, groups), ..] = grouped();
    let plain = Plain::new(layout.bits, numbers);
    let stored = Stored::new(&plain, layout);
    let turned = HostIntegers {
        turned: true,
        ..stored
            .matrix(layout, groups, true)
            .part(&(3..17), 1, &(5..43))
    };
    assert_eq!((turned.rows(), turned.cols()), (38, 14));
    for row in 0..38 {
        let mut values = [f32::NAN; 12];
        turned.read(row, 2, &mut values);
        for (col, value) in values.into_iter().enumerate() {
            assert_eq!(value, plain.value(5 + col, 5 + row, true), "{row} {col}");
        }
    }
}

/// A borrow of a zero point that was 0 leaves its neighbours alone: words are added, not fields.
#[test]
fn zero_points_of_0_less_one_borrow_from_their_neighbours() {
    let packing = packing(Direction::Inputs, Direction::Outputs, WordOrder::Rising);
    let zeros = [0u8, 0, 15, 7, 0, 8, 1, 0];
    let word = zeros
        .iter()
        .rev()
        .fold(0u32, |word, zero| word << 4 | u32::from(*zero));
    let bytes = word.wrapping_sub(0x1111_1111).to_le_bytes().to_vec();
    let stored = (bytes, 4);
    let packed = words(&stored, packing, 4, 0x1111_1111);
    for (output, zero) in zeros.into_iter().enumerate() {
        let mut found = [99];
        assert!(packed.read(output, 0, &mut found));
        assert_eq!(found, [zero], "{output}");
    }
}

#[test]
fn scales_that_are_no_numbers_are_named() {
    let layout = &layouts()[0];
    let [(numbers, groups), ..] = grouped();
    let plain = Plain::new(layout.bits, numbers);
    let mut stored = Stored::new(&plain, layout);
    let wrong = |stored: &Stored| {
        let whole = HostMatrix::Integers(stored.matrix(layout, groups.clone(), true));
        whole.wrong_tensor().map(str::to_owned)
    };
    assert_eq!(wrong(&stored), None);
    let end = stored.scales.0.len();
    stored.scales.0[end - 2..].copy_from_slice(&f16::INFINITY.to_le_bytes());
    assert_eq!(wrong(&stored).as_deref(), Some("x.scales"));
}

/// One scale for all outputs, wherever a part begins.
#[test]
fn a_single_scale_is_that_of_all_outputs() {
    let layout = &layouts()[6];
    let plain = Plain::new(8, vec![0; INPUTS]);
    let mut stored = Stored::new(&plain, layout);
    stored.scales = (f16::from_f32(0.5).to_le_bytes().to_vec(), 2);
    let mut whole = stored.matrix(layout, InputGroups::Whole, false);
    whole.scales.single = true;
    let part = whole.part(&(3..9), 2, &(5..9));
    for (row, output) in [3, 5, 7].into_iter().enumerate() {
        let mut values = [f32::NAN; 4];
        part.read(row, 0, &mut values);
        for (input, value) in (5..).zip(values) {
            let code = i32::from(plain.codes[output][input]) - 128;
            assert_eq!(value, code as f32 * 0.5);
        }
    }
}
