//! Packed integers in groups are what a checkpoint holds.

use lockstep_backend::{CodeTable, HostBlock, HostForm, HostGroups, RandomMatrix};

use super::*;

/// A part of a tensor `[rows, whole]` of random codes and scales, from column `first` on.
struct Part {
    format: GroupFormat,
    whole: usize,
    first: usize,
    cols: usize,
    codes: Vec<i8>,
    steps: Vec<GroupStep>,
}

const ROWS: usize = 35;

impl Part {
    fn new(format: GroupFormat, first: usize, cols: usize) -> Self {
        let whole = (first + cols).next_multiple_of(256);
        let mut state = (first * 77 + cols) as u64 | 1;
        let mut below = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % limit
        };
        let (codes, least) = match (format.bits, format.codes, format.minimum) {
            (4, Codes::Integers, Minimum::None) => (16, -8),
            (4, ..) => (16, 0),
            _ => (256, -128),
        };
        let values = (0..ROWS * whole).map(|_| (below(codes) as i64 + least) as i8);
        let values = values.collect();
        // Of as many bits that products with multiples are exact.
        let mut factor = || {
            let bits = ((below(1 << 15) as u32) << 8) | 0x3e80_0000;
            let factor = f32::from_bits(bits) * if below(2) == 0 { 1.0 } else { -1.0 };
            match format.factors {
                FactorType::F16 => f16::from_f32(factor).to_f32(),
                FactorType::Bf16 => bf16::from_f32(factor).to_f32(),
                FactorType::F32 => factor,
            }
        };
        let factor_groups = (ROWS * whole).div_ceil(format.factor_group);
        let factors: Vec<_> = (0..factor_groups).map(|_| [factor(), factor()]).collect();
        let shared = format.factor_group > format.group;
        let step = |group: usize| {
            let [factor, own] = factors[group * format.group / format.factor_group];
            let multiple = |seed: usize| ((group * 37 + seed) % 256) as i16 - 128;
            GroupStep {
                factor,
                multiple: if shared { multiple(0) } else { 1 },
                min_factor: match format.minimum {
                    Minimum::None => 0.0,
                    Minimum::Zero => factor,
                    Minimum::Own => own,
                },
                min_multiple: match (format.minimum, shared) {
                    (Minimum::None, _) => 0,
                    (Minimum::Own, false) => 1,
                    _ => multiple(5),
                },
            }
        };
        Self {
            format,
            whole,
            first,
            cols,
            codes: values,
            steps: (0..ROWS * whole / format.group).map(step).collect(),
        }
    }

    fn place(&self, row: usize, col: usize) -> usize {
        row * self.whole + self.first + col
    }
}

impl<'a> HostForm<'a> for Part {
    fn rows(&self) -> usize {
        ROWS
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn row_bytes(&self) -> usize {
        self.cols
    }

    fn blocks(&self) -> &[HostBlock<'a>] {
        &[]
    }

    /// Returns no matrix: no file holds the rows.
    fn with_rows<'b>(&self, _: &'b [u8]) -> HostMatrix<'b> {
        HostMatrix::Random(RandomMatrix {
            cols: self.cols,
            blocks: Vec::new(),
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        for (col, value) in (from..).zip(values) {
            let place = self.place(row, col);
            let code = self.codes[place];
            let integer = match self.format.codes {
                Codes::Integers => code,
                Codes::Table(table) => table.values()[code as usize],
            };
            *value = self.steps[place / self.format.group].value(i32::from(integer));
        }
    }
}

impl<'a> HostGroups<'a> for Part {
    fn group_format(&self) -> GroupFormat {
        self.format
    }

    fn codes(&self, row: usize, from: usize, out: &mut [i8]) {
        let first = self.place(row, from);
        out.copy_from_slice(&self.codes[first..first + out.len()]);
    }

    fn steps(&self, row: usize, from: usize, out: &mut [GroupStep]) {
        for (number, step) in out.iter_mut().enumerate() {
            let place = self.place(row, from) + number * self.format.group;
            *step = self.steps[place / self.format.group];
        }
    }
}

/// Packs a part in the layout `format`, and compares what comes back.
fn expect(part: &Part, format: GroupFormat) {
    assert!(format.holds(&part.format));
    let packed = known::known(format).expect("a layout that is kept");
    let steps = packed.steps(part.cols);
    let column = |row, columns| stored::column(&format, part, row, columns);
    for panel in 0..ROWS.div_ceil(PANEL) {
        let mut words = vec![0; steps * packed.step_words()];
        packed.pack([ROWS, part.cols], panel, &mut words, column);
        for lane in 0..PANEL.min(ROWS - panel * PANEL) {
            let mut expected = vec![0.0; part.cols];
            part.read(panel * PANEL + lane, 0, &mut expected);
            let mut found = vec![f32::NAN; part.cols];
            packed.read_row(&words, lane, &mut found);
            let (stored, first) = (part.format, part.first);
            assert_eq!(found, expected, "{stored:?} from {first} as {format:?}");
        }
    }
}

#[test]
fn packed_values_are_those_of_the_checkpoint() {
    for format in known::all() {
        expect(&Part::new(format, 0, 300), format);
    }
}

/// A rank's part begins inside of groups, or of groups that share a factor.
#[test]
fn a_part_has_the_values_of_the_whole() {
    for format in known::all().filter(|format| format.factors == FactorType::F16) {
        for first in [128, 96, 64, 16] {
            if let Some(part) = format.of_part(first) {
                expect(&Part::new(format, first, 200), part);
            }
        }
    }
}

/// Rows of two layouts that lie one below the other.
#[test]
fn a_common_layout_has_the_values_of_both() {
    let formats: Vec<_> = known::all().collect();
    let table = |format: &&GroupFormat| format.codes == Codes::Table(CodeTable::Iq4);
    let some = formats
        .iter()
        .step_by(7)
        .chain(formats.iter().filter(table).take(2));
    let some: Vec<_> = some.collect();
    for one in &some {
        for other in &some {
            let both = one.with(**other);
            expect(&Part::new(**one, 0, 140), both);
        }
    }
}
