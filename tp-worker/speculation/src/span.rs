//! The part of a request's text that a drafter has taken in.

use crate::{DraftRow, PageTable};

/// Consecutive positions of a request's text that have the drafter's keys and values.
///
/// The positions begin at 0, or at the beginning of a page if the drafter has missed more than
/// it can take in later. The drafter then goes on as if the text began there: in its passes
/// position `from` is position 0, in the first cell of that page. Example: with pages of 16 and
/// `from` 64, position 70 of the text is position 6 of the passes, and their page table begins
/// 4 pages later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first position, at a page's beginning.
    pub from: usize,
    /// The position after the last one.
    pub to: usize,
}

impl Span {
    /// Makes an empty span of a text that begins at `from`.
    pub fn beginning(from: usize) -> Self {
        Self { from, to: from }
    }

    /// Returns the position in the drafter's passes of a position of the text.
    pub fn place(self, position: usize) -> usize {
        position - self.from
    }

    /// Returns the start of the page table for the drafter's passes. The text's page table
    /// begins at `pages_start`.
    pub fn pages(self, pages: PageTable<'_>, pages_start: u32) -> u32 {
        pages_start + self.from as u32 / pages.page_size
    }

    /// Returns a row with the positions of the drafter's passes.
    pub fn row(self, pages: PageTable<'_>, row: &DraftRow) -> DraftRow {
        DraftRow {
            pages_start: self.pages(pages, row.pages_start),
            kv_len: self.place(row.kv_len),
            ..*row
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_span_is_seen_from_its_first_page_on() {
        let pages = PageTable {
            entries: &[0; 64],
            page_size: 16,
        };
        let row = DraftRow {
            slot: 3,
            pages_start: 40,
            kv_len: 70,
            steps: 2,
            topk: 1,
            most: 2,
            room: 9,
            may_stop: false,
        };
        for (from, pages_start, kv_len) in [(0, 40, 70), (32, 42, 38), (64, 44, 6)] {
            let span = Span { from, to: 70 };
            let expected = DraftRow {
                pages_start,
                kv_len,
                ..row
            };
            assert_eq!(span.row(pages, &row), expected);
            assert_eq!(span.place(from), 0);
        }
        assert_eq!(Span::beginning(32), Span { from: 32, to: 32 });
    }
}
