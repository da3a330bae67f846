//! Questions that every form of a matrix answers.

use super::HostMatrix;

/// A form in which checkpoints hold matrices. Files are read, and devices pack, through it.
pub trait HostForm<'a>: Sync {
    /// Returns the number of rows.
    fn rows(&self) -> usize;

    /// Returns the number of columns.
    fn cols(&self) -> usize;

    /// Returns the bytes of one row on the host.
    fn row_bytes(&self) -> usize;

    /// Returns the places of the rows in files, top to bottom; empty if no file holds them.
    fn blocks(&self) -> &[HostBlock<'a>];

    /// Returns all that files hold of the matrix: lists of places, each with the bytes of a row.
    fn parts(&self) -> Vec<(&[HostBlock<'a>], usize)> {
        vec![(self.blocks(), self.row_bytes())]
    }

    /// Returns the matrix with the rows of all [`Self::parts`] one behind the other in `bytes`.
    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b>;

    /// Writes the values of row `row`, from column `from` on, to `values`. The values of a row
    /// that its file does not hold are left as they are.
    fn read(&self, row: usize, from: usize, values: &mut [f32]);
}

/// `rows` rows. Row `r` is `bytes[offset + r·stride ..][.. bytes of a row]`.
#[derive(Debug, Clone, Copy)]
pub struct HostBlock<'a> {
    /// Memory that the rows lie in, typically a mapped file.
    pub bytes: &'a [u8],
    /// Byte offset of the first row's first used column.
    pub offset: usize,
    /// Number of bytes from one row to the next.
    pub stride: usize,
    /// Number of rows in this block.
    pub rows: usize,
}

impl<'a> HostBlock<'a> {
    /// Returns row `row` of the block, `width` bytes; `None` past the end of the memory.
    pub fn row(&self, row: usize, width: usize) -> Option<&'a [u8]> {
        let at = row.checked_mul(self.stride)?.checked_add(self.offset)?;
        self.bytes.get(at..at.checked_add(width)?)
    }
}

/// Returns row `row` of `blocks`, `width` bytes, and the number of its block; `None` past the
/// end.
pub(super) fn find<'a>(
    blocks: &[HostBlock<'a>],
    row: usize,
    width: usize,
) -> Option<(usize, usize, &'a [u8])> {
    let mut row = row;
    for (number, block) in blocks.iter().enumerate() {
        if row < block.rows {
            return Some((number, row, block.row(row, width)?));
        }
        row -= block.rows;
    }
    None
}

/// Returns blocks of as many rows as `blocks` with their rows, of `width` bytes, one behind the
/// other in `bytes`.
pub(super) fn packed<'b>(
    blocks: &[HostBlock<'_>],
    width: usize,
    bytes: &'b [u8],
) -> Vec<HostBlock<'b>> {
    let mut offset = 0;
    let place = |block: &HostBlock<'_>| {
        let place = HostBlock {
            bytes,
            offset,
            stride: width,
            rows: block.rows,
        };
        offset += block.rows * width;
        place
    };
    blocks.iter().map(place).collect()
}
