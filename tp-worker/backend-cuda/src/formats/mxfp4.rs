//! Matrices of 4-bit floats with exponents, laid out as `mxfp4.cuh` reads them.

use lockstep_backend::{HostMatrix, HostMxfp4, Mxfp4Group};

use super::uploads::missing;
use super::{Device, Transport};
use crate::error::CudaError;
use crate::tensors::CudaMatrix;

/// Columns that share an exponent.
const GROUP: usize = HostMxfp4::GROUP;
/// Number of a row's exponents is a multiple of this, so that kernels copy as many at a time.
const EXPONENTS: usize = 4;

/// Bits of the magnitudes of pairs 0 to 3 in their half of a word, and of their signs.
const MAGNITUDES: [u32; 4] = [6, 3, 0, 9];
const SIGNS: [u32; 4] = [15, 12, 14, 13];
/// Bits that a pair of floats, the earlier one in the low half of a byte, adds to its word, for pairs 0
/// to 3.
const WORDS: [[u32; 256]; 4] = words();

const fn words() -> [[u32; 256]; 4] {
    let mut words = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        let (pair, byte) = (at / 256, (at % 256) as u32);
        let mut half = 0;
        while half < 2 {
            let code = byte >> (4 * half);
            let bits = (code & 7) << MAGNITUDES[pair] | (code >> 3 & 1) << SIGNS[pair];
            words[pair][at % 256] |= bits << (16 * half);
            half += 1;
        }
        at += 1;
    }
    words
}

/// Bytes of the floats of a row of `cols` columns, and of its exponents.
const fn row_bytes(cols: usize) -> [usize; 2] {
    let groups = cols.div_ceil(GROUP);
    [
        groups.saturating_mul(HostMxfp4::GROUP_BYTES),
        groups.next_multiple_of(EXPONENTS),
    ]
}

/// Bytes of a matrix `[rows, cols]` on the device.
pub(crate) fn bytes(rows: usize, cols: usize) -> usize {
    let [floats, exponents] = row_bytes(cols);
    rows.saturating_mul(floats.saturating_add(exponents))
}

/// Brings a matrix to the device.
///
/// # Errors
/// [`CudaError`]: there is no room, rows are missing in a file, or the device fails.
pub(super) fn load(
    device: Device<'_>,
    Transport { uploads, slabs }: &mut Transport,
    matrix: &HostMatrix<'_>,
) -> Result<CudaMatrix, CudaError> {
    if let Some(row) = matrix.missing_row() {
        return Err(missing(row));
    }
    let (rows, cols, stream) = (matrix.rows(), matrix.cols(), device.stream);
    let mut packed = slabs.room(stream.context(), bytes(rows, cols))?;
    let [floats, exponents] = row_bytes(cols);
    let group = |row: usize, number: usize| Mxfp4Group::of(matrix, row, number * GROUP);
    uploads.rows(stream, &mut packed, 0, (rows, floats), |row, bytes| {
        let groups = bytes.chunks_exact_mut(HostMxfp4::GROUP_BYTES).enumerate();
        groups.for_each(|(number, bytes)| pack(&group(row, number), bytes));
    })?;
    let (at, groups) = (rows * floats, cols.div_ceil(GROUP));
    uploads.rows(stream, &mut packed, at, (rows, exponents), |row, bytes| {
        let bytes = bytes[..groups].iter_mut().enumerate();
        bytes.for_each(|(number, byte)| *byte = group(row, number).exponent);
    })?;
    Ok(CudaMatrix::mxfp4(packed, rows, cols))
}

/// Packs a group's floats in four words.
fn pack(group: &Mxfp4Group, bytes: &mut [u8]) {
    let mut pairs = [0; HostMxfp4::GROUP_BYTES];
    for (pair, codes) in pairs.iter_mut().zip(group.codes.chunks_exact(2)) {
        *pair = codes[0] | codes[1] << 4;
    }
    for (number, bytes) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let pair = |of: usize| WORDS[of][usize::from(pairs[4 * of + number])];
        *bytes = (pair(0) | pair(1) | pair(2) | pair(3)).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every bit of a word belongs to one float.
    #[test]
    fn floats_fill_their_words() {
        let bits = (0..4).flat_map(|pair| [1, 2, 4, 8, 16, 32, 64, 128].map(|code| (pair, code)));
        let words: Vec<u32> = bits.map(|(pair, code)| WORDS[pair][code]).collect();
        assert!(words.iter().all(|word| word.is_power_of_two()));
        let distinct: BTreeSet<u32> = words.into_iter().collect();
        assert_eq!(distinct.len(), 32);
    }

    /// 17 bytes for 32 columns, where the number of exponents is a multiple of four.
    #[test]
    fn matrices_take_as_much_as_in_files() {
        assert_eq!(bytes(3, 256), 3 * 8 * 17);
        assert_eq!(bytes(2, 2880), 2 * (90 * 16 + 92));
        assert_eq!(bytes(1, 33), 2 * 16 + 4);
    }
}
