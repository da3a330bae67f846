//! Matrices of different forms, one below the other.

use lockstep_types::{Codes, GroupFormat};

use super::HostMatrix;
use super::form::{HostBlock, HostForm};
use super::groups::{GroupStep, HostGroups};

/// Rows of several matrices of equal width, top to bottom, each in a form of its own: the
/// projections to queries, keys and values of which a checkpoint has rounded some.
#[derive(Debug, Clone, Default)]
pub struct HostJoined<'a> {
    /// The matrices, top to bottom.
    pub parts: Vec<HostMatrix<'a>>,
}

impl<'a> HostJoined<'a> {
    /// Returns the matrix that holds row `row`, and the number of the row there; `None` past
    /// the end.
    fn find(&self, row: usize) -> Option<(&HostMatrix<'a>, usize)> {
        let mut row = row;
        for part in &self.parts {
            if row < part.rows() {
                return Some((part, row));
            }
            row -= part.rows();
        }
        None
    }

    /// Returns the layout for the rows of all parts; `None` if some are no integers in groups.
    pub(super) fn layout(&self) -> Option<GroupFormat> {
        let layouts = self.parts.iter();
        let mut layouts = layouts.map(|part| Some(part.groups()?.group_format()));
        let first = layouts.next()??;
        layouts.try_fold(first, |all, layout| Some(all.with(layout?)))
    }

    /// Returns the groups that hold row `row`, and the number of the row there.
    fn groups_of(&self, row: usize) -> Option<(&dyn HostGroups<'a>, usize)> {
        let (part, row) = self.find(row)?;
        Some((part.groups()?, row))
    }

    /// Returns the first row that its file does not hold; `None` if all are there.
    pub(super) fn missing_row(&self) -> Option<usize> {
        let mut top = 0;
        for part in &self.parts {
            if let Some(row) = part.missing_row() {
                return Some(top + row);
            }
            top += part.rows();
        }
        None
    }
}

impl<'a> HostForm<'a> for HostJoined<'a> {
    fn rows(&self) -> usize {
        self.parts.iter().map(HostMatrix::rows).sum()
    }

    fn cols(&self) -> usize {
        self.parts.first().map_or(0, HostMatrix::cols)
    }

    /// Returns 0: rows of each part have their own width, see [`Self::parts`].
    fn row_bytes(&self) -> usize {
        0
    }

    /// Returns none: the parts have them.
    fn blocks(&self) -> &[HostBlock<'a>] {
        &[]
    }

    fn parts(&self) -> Vec<(&[HostBlock<'a>], usize)> {
        let parts = self.parts.iter();
        parts.flat_map(|part| part.form().parts()).collect()
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        let mut rest = bytes;
        let part = |part: &HostMatrix<'a>| {
            let (own, behind) = rest.split_at(part.bytes() as usize);
            rest = behind;
            part.form().with_rows(own)
        };
        HostMatrix::Joined(HostJoined {
            parts: self.parts.iter().map(part).collect(),
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        if let Some((part, row)) = self.find(row) {
            part.form().read(row, from, values);
        }
    }
}

/// Groups of all parts: see [`HostMatrix::groups`].
impl<'a> HostGroups<'a> for HostJoined<'a> {
    fn group_format(&self) -> GroupFormat {
        self.layout().unwrap_or(GroupFormat::ANY)
    }

    /// Writes integers where the parts' layouts differ, whatever tables the parts have.
    fn codes(&self, row: usize, from: usize, out: &mut [i8]) {
        let Some((groups, row)) = self.groups_of(row) else {
            return;
        };
        groups.codes(row, from, out);
        if let (Codes::Integers, Codes::Table(table)) =
            (self.group_format().codes, groups.group_format().codes)
        {
            let values = table.values();
            out.iter_mut()
                .for_each(|code| *code = values[*code as usize & 15]);
        }
    }

    fn steps(&self, row: usize, from: usize, out: &mut [GroupStep]) {
        let Some((groups, row)) = self.groups_of(row) else {
            return;
        };
        let group = self.group_format().group;
        for (number, step) in out.iter_mut().enumerate() {
            groups.steps(row, from + number * group, std::slice::from_mut(step));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{CheckpointDtype, E4m3, HostFloats, HostFp8, ScaleGrid, ScalePart};

    fn block(bytes: &[u8], width: usize, rows: usize) -> HostBlock<'_> {
        HostBlock {
            bytes,
            offset: 0,
            stride: width,
            rows,
        }
    }

    /// 8-bit floats `[2, 4]`, 32-bit floats `[1, 4]`, and such floats `[1, 4]` again.
    #[test]
    fn every_row_has_the_values_of_its_own_form() {
        let codes: [u8; 8] = [0x38, 0x3c, 0xb8, 0x40, 0x30, 0, 0x7e, 0x01];
        let floats: [f32; 4] = [0.1, 0.2, 0.3, 0.4];
        let floats: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        let fp8 = |codes, rows, scale| {
            let whole = Arc::new(ScaleGrid {
                tensor: "x.weight".to_owned(),
                values: vec![scale],
                stride: 1,
                rows: usize::MAX,
                cols: usize::MAX,
            });
            HostMatrix::Fp8(HostFp8 {
                cols: 4,
                blocks: vec![block(codes, 4, rows)],
                scales: vec![ScalePart {
                    whole,
                    row: 0,
                    col: 0,
                    step: 1,
                }],
            })
        };
        let mut all = fp8(&codes, 2, 3.0);
        all.append(HostMatrix::Floats(HostFloats {
            cols: 4,
            dtype: CheckpointDtype::F32,
            blocks: vec![block(&floats, 16, 1)],
        }));
        all.append(fp8(&codes[4..], 1, 5.0));
        assert_eq!((all.rows(), all.cols(), all.bytes()), (4, 4, 8 + 16 + 4));
        assert_eq!(all.missing_row(), None);
        let read = [&codes[..], &floats, &codes[4..]].concat();
        let moved = all.form().with_rows(&read);
        let of_codes = |codes: &[u8], scale: f32| -> Vec<f32> {
            codes
                .iter()
                .map(|code| E4m3(*code).value() * scale)
                .collect()
        };
        let expected = [
            of_codes(&codes[..4], 3.0),
            of_codes(&codes[4..], 3.0),
            vec![0.1, 0.2, 0.3, 0.4],
            of_codes(&codes[4..], 5.0),
        ];
        for matrix in [&all, &moved] {
            for (row, expected) in expected.iter().enumerate() {
                let mut values = [f32::NAN; 3];
                matrix.form().read(row, 1, &mut values);
                assert_eq!(values, expected[1..], "{row}");
            }
        }
        // The last float's bytes are cut off.
        let cut = HostMatrix::Floats(HostFloats {
            cols: 4,
            dtype: CheckpointDtype::F32,
            blocks: vec![block(&floats[..15], 16, 1)],
        });
        all.append(cut);
        assert_eq!(all.missing_row(), Some(4));
        assert_eq!(all.wrong_tensor(), None);
        all.append(fp8(&[0, 0, 0x7f, 0], 1, 1.0));
        assert_eq!(all.wrong_tensor(), Some("x.weight"));
    }
}
