//! The part of a request's text that a drafter has taken in.

use crate::{DraftRow, PageTable};

/// Positions of a request's text that have the drafter's keys and values, one after the other.
///
/// They begin at position 0, or at the beginning of a page where the drafter has missed
/// more than it can take in later. The drafter then goes on as if the text began there:
/// in its passes position `from` is position 0, in the first cell of that page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first of them, a page's beginning.
    pub from: usize,
    /// Behind the last of them.
    pub to: usize,
}

impl Span {
    /// None yet, of a text that begins at `from`.
    pub fn beginning(from: usize) -> Self {
        Self { from, to: from }
    }

    /// The position in the drafter's passes of a position of the text.
    pub fn place(self, position: usize) -> usize {
        position - self.from
    }

    /// Where the row of a page table begins that the drafter's passes go by, which begins at
    /// `pages_start` for the text.
    pub fn pages(self, pages: PageTable<'_>, pages_start: u32) -> u32 {
        pages_start + self.from as u32 / pages.page_size
    }

    /// A row as the drafter's passes see it.
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
