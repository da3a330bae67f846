//! The places of requests' keys and values.

/// The request-to-page table.
#[derive(Debug, Clone, Copy)]
pub struct PageTable<'a> {
    /// Rows of all slots, one after the other.
    pub entries: &'a [u32],
    /// Number of tokens per page.
    pub page_size: u32,
}

impl PageTable<'_> {
    /// Returns the cache cell of a position, for the row that begins at `start`.
    pub fn cell(&self, start: u32, position: u32) -> u32 {
        let page = self.entries[(start + position / self.page_size) as usize];
        page * self.page_size + position % self.page_size
    }
}
