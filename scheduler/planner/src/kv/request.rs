//! The KV memory of one request.

use super::radix::{NodeId, ROOT};

/// Pages of one request, and how far they are filled.
///
/// Lengths are in tokens: `protected ≤ committed ≤ planned ≤ allocated`, where
/// `protected` is `protected_pages` whole pages and `allocated` is `pages`
/// whole pages. A request without a slot holds nothing.
#[derive(Debug)]
pub(crate) struct RequestKv {
    /// The slot's page table.
    pub(super) pages: Vec<u32>,
    /// Leading pages that the workers have been told.
    pub(super) sent_pages: usize,
    /// Leading pages that the cache owns, locked through `node`.
    pub(super) protected_pages: u32,
    pub(super) node: NodeId,
    /// Upper bound of the slot's KV length after all planned steps.
    pub(super) planned: u32,
    /// KV that is final: positions below hold exactly the request's tokens.
    pub(super) committed: u32,
    /// The drafter's KV that is sure to be in place, without a hole from the
    /// beginning; may be less than `committed`.
    pub(super) drafted: u32,
    /// The drafter's KV of the cached prefix is in place, too, or there is no such prefix.
    pub(super) prefix_drafted: bool,
    /// Leading pages that are noted as drafted.
    pub(super) marked_pages: u32,
}

impl RequestKv {
    /// Of a request without a slot.
    pub fn none() -> Self {
        Self {
            pages: Vec::new(),
            sent_pages: 0,
            protected_pages: 0,
            node: ROOT,
            planned: 0,
            committed: 0,
            drafted: 0,
            prefix_drafted: true,
            marked_pages: 0,
        }
    }

    /// Upper bound of the slot's KV length after all planned steps.
    pub fn planned(&self) -> u32 {
        self.planned
    }

    /// Tokens whose KV is final.
    pub fn committed(&self) -> u32 {
        self.committed
    }

    /// Whether the drafter has its KV of the cached prefix, too, if there is one.
    pub fn is_prefix_drafted(&self) -> bool {
        self.prefix_drafted
    }

    /// Its cached prefix is matched: whether the drafter's KV is there, too.
    pub(super) fn open_drafted(&mut self, drafted: bool) {
        self.prefix_drafted = drafted;
        if drafted {
            (self.drafted, self.marked_pages) = (self.committed, self.protected_pages);
        }
    }

    /// Pages held, shared ones included.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Makes room for so many pages, so that growing does not allocate.
    pub fn reserve_pages(&mut self, more: usize) {
        self.pages.reserve(more);
    }

    /// Pages that no plan has told the workers yet; they are taken as told.
    pub fn take_unsent_pages(&mut self) -> &[u32] {
        let from = std::mem::replace(&mut self.sent_pages, self.pages.len());
        &self.pages[from..]
    }

    /// A planned step moves the slot on by at most so many tokens.
    pub fn plan(&mut self, tokens: u32) {
        self.planned += tokens;
    }

    /// The text ends at `len` tokens although more were accepted.
    pub fn truncate(&mut self, len: u32) {
        self.committed = self.committed.min(len);
    }

    /// Forgets everything, once the pages have been given back or are gone.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.sent_pages = 0;
        self.protected_pages = 0;
        self.node = ROOT;
        self.planned = 0;
        self.committed = 0;
        self.drafted = 0;
        self.prefix_drafted = true;
        self.marked_pages = 0;
    }
}
