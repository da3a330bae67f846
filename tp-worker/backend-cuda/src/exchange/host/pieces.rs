//! Division of an exchange into pieces that pass through the host one at a time.

use std::ops::Range;

/// Splits `0..len` into pieces of at most `each`. There is at least one piece, since words ride
/// on an exchange of nothing, too.
pub(super) fn pieces(len: usize, each: usize) -> impl Iterator<Item = Range<usize>> {
    let count = len.div_ceil(each).max(1);
    (0..count).map(move |number| number * each..len.min((number + 1) * each))
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
}
