//! What passes through the host at a time.

use std::ops::Range;

/// `0..len` in pieces of at most `each`; at least one, for words that ride on an
/// exchange come with one of nothing too.
pub(super) fn pieces(len: usize, each: usize) -> impl Iterator<Item = Range<usize>> {
    let count = len.div_ceil(each).max(1);
    (0..count).map(move |number| number * each..len.min((number + 1) * each))
}

/// Sets `ranges` to the elements of `rows`, by rank, of a matrix `width` wide, as far
/// as they lie in `piece` of it, counted from there.
pub(super) fn elements_of(
    ranges: &mut Vec<Range<usize>>,
    rows: &[Range<usize>],
    width: usize,
    piece: &Range<usize>,
) {
    let inside = |row: usize| (row * width).clamp(piece.start, piece.end) - piece.start;
    ranges.clear();
    ranges.extend(rows.iter().map(|rows| inside(rows.start)..inside(rows.end)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_there_is_in_turn() {
        let found = |len, each| {
            let ends = pieces(len, each).map(|piece| (piece.start, piece.end));
            ends.collect::<Vec<_>>()
        };
        assert_eq!(found(0, 4), [(0, 0)]);
        assert_eq!(found(4, 4), [(0, 4)]);
        assert_eq!(found(9, 4), [(0, 4), (4, 8), (8, 9)]);
    }

    #[test]
    fn a_ranks_rows_are_taken_piece_by_piece() {
        // Rows of 3; a piece may end inside of one.
        let rows = [0..2, 2..2, 1..4];
        let mut ranges = Vec::new();
        let mut taken = vec![Vec::new(); rows.len()];
        for piece in pieces(12, 5) {
            elements_of(&mut ranges, &rows, 3, &piece);
            for (taken, range) in taken.iter_mut().zip(&ranges) {
                taken.extend(range.clone().map(|element| piece.start + element));
            }
        }
        let all = |range: Range<usize>| range.collect::<Vec<_>>();
        assert_eq!(taken, [all(0..6), all(0..0), all(3..12)]);
    }
}
