//! What drafters leave for later of prompts that are computed in steps that draft
//! nothing: planner and workers go by it, and never say so to each other.

use std::ops::Range;

/// Whether a drafter that may pause leaves these positions of a prompt for
/// later, with a [`pause_window`](crate::Algorithm::pause_window) of `window`. It
/// takes in what completes pages of `page_size` positions, for those are worth
/// sharing with other requests; and no more is left than [`most`], so that the
/// window has room for what the request generates.
///
/// Whatever lies before the page of such a piece has been taken in.
pub fn leaves(piece: &Range<u32>, page_size: u32, window: u32) -> bool {
    let completes_a_page = piece.start / page_size < piece.end / page_size;
    !completes_a_page && piece.end % page_size <= most(window)
}

/// Positions of a prompt that are left at the most.
pub fn most(window: u32) -> u32 {
    window / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_prompts_are_left_if_they_complete_no_page() {
        for (piece, left) in [
            (0..16, true),
            (0..17, false),
            (64..80, true),
            // In pieces of their own: all that the page has counts.
            (78..80, true),
            (80..81, false),
            (64..128, false),
            (127..128, false),
            (60..70, false),
        ] {
            assert_eq!(leaves(&piece, 64, 64), left, "{piece:?}");
        }
        // Every position completes a page, and without a window nothing is left.
        assert!(!leaves(&(5..6), 1, 64));
        assert!(!leaves(&(0..1), 16, 0));
        assert!(!leaves(&(16..17), 16, 3));
    }
}
