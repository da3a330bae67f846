//! Rows of ranks in the host's memory. Backends whose data passes through the host share this
//! code.

use std::ops::Range;

use lockstep_collective::{Collective, CollectiveError, Owners, Parts};

/// Sets `ranges` to the elements of `rows`, by rank, as far as they lie in `piece`. The matrix
/// is `width` wide, and elements are counted from the start of `piece`.
pub fn elements_of(
    ranges: &mut Vec<Range<usize>>,
    rows: &[Range<usize>],
    width: usize,
    piece: &Range<usize>,
) {
    let inside = |row: usize| (row * width).clamp(piece.start, piece.end) - piece.start;
    ranges.clear();
    ranges.extend(rows.iter().map(|rows| inside(rows.start)..inside(rows.end)));
}

/// Returns every rank's columns of the rows that this rank owns by `owners`. `send` are this
/// rank's columns of all rows. The group lends the result, or it is copied to `space` if it
/// exceeds the capacity of a transfer.
///
/// # Errors
/// [`CollectiveError`]: see [`Collective::gather`].
pub fn gather_columns<'a>(
    group: &'a mut dyn Collective,
    send: &'a [f32],
    owners: Owners<'_>,
    space: &'a mut Vec<f32>,
) -> Result<Parts<'a>, CollectiveError> {
    let (rank, ranks) = (group.rank(), group.size());
    let (height, own) = (owners.height(), owners.rows[rank].len());
    let widest = owners.widths.iter().max().copied().unwrap_or(0);
    if widest * height <= group.parts_capacity() {
        return group.gather_parts(send, owners);
    }
    let total = own * owners.widths.iter().sum::<usize>();
    group.gather(send, owners, grown(space, total))?;
    let mut rest = space.as_slice();
    Ok(Parts::new(ranks, |rank| {
        let (part, after) = rest.split_at(own * owners.widths[rank]);
        rest = after;
        part
    }))
}

/// Returns the first `len` elements of `space`. The buffer never shrinks, so that growing again
/// does not fill it with zeros.
pub fn grown(space: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if space.len() < len {
        space.resize(len, 0.0);
    }
    &mut space[..len]
}

/// Puts row `row` together in `out`, from the ranks' columns. Rank `r` has `widths[r]` columns.
pub fn copy_row(parts: &Parts<'_>, widths: &[usize], row: usize, out: &mut [f32]) {
    let mut rest = out;
    for (part, &width) in parts.by_rank().iter().zip(widths) {
        let (own, after) = rest.split_at_mut(width);
        own.copy_from_slice(&part[row * width..(row + 1) * width]);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use lockstep_collective::{Options, local_group_with};

    use super::*;

    #[test]
    fn a_ranks_rows_are_taken_piece_by_piece() {
        // Rows of 3; a piece may end inside of one.
        let rows = [0..2, 2..2, 1..4];
        let mut ranges = Vec::new();
        let mut taken = vec![Vec::new(); rows.len()];
        for piece in [0..5, 5..10, 10..12] {
            elements_of(&mut ranges, &rows, 3, &piece);
            for (taken, range) in taken.iter_mut().zip(&ranges) {
                taken.extend(range.clone().map(|element| piece.start + element));
            }
        }
        let all = |range: Range<usize>| range.collect::<Vec<_>>();
        assert_eq!(taken, [all(0..6), all(0..0), all(3..12)]);
    }

    /// Lent and copied columns make the same rows.
    #[test]
    fn columns_of_all_ranks_make_rows() {
        let widths = [2, 3];
        let rows = [0..1, 1..4];
        for max_elements in [6, 12] {
            let options = Options {
                max_elements,
                ..Options::default()
            };
            let ranks = local_group_with(2, &options).into_iter().zip(rows.clone());
            let start = |(mut group, own): (_, Range<usize>)| {
                let rows = rows.clone();
                std::thread::spawn(move || {
                    let group: &mut dyn Collective = &mut group;
                    let (rank, width) = (group.rank(), widths[group.rank()]);
                    // Element 100 · row + 10 · rank + column.
                    let of_row =
                        |row: usize| (0..width).map(move |column| 100 * row + 10 * rank + column);
                    let send: Vec<_> = (0..4).flat_map(of_row).map(|at| at as f32).collect();
                    let owners = Owners {
                        widths: &widths,
                        rows: &rows,
                    };
                    let mut space = Vec::new();
                    let parts = gather_columns(group, &send, owners, &mut space);
                    let parts = parts.expect("gathered");
                    let mut out = vec![0.0; own.len() * 5];
                    for (row, out) in out.chunks_mut(5).enumerate() {
                        copy_row(&parts, &widths, row, out);
                    }
                    let expected =
                        own.flat_map(|row| [0, 1, 10, 11, 12].map(|at: usize| 100 * row + at));
                    assert!(out.into_iter().eq(expected.map(|at| at as f32)));
                    space.is_empty()
                })
            };
            let lent: Vec<_> = ranks.map(start).collect();
            for rank in lent {
                let lent = rank.join().expect("no panic");
                assert_eq!(lent, max_elements == 12);
            }
        }
    }
}
