//! The KV memory of one request.

use super::{
    lag::Drafted,
    radix::{Namespace, NodeId, ROOT},
    states::HeldStates,
    windows::HeldWindows,
};

/// Tokens of a text's beginning that are cached, by the kind of layers that could serve them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// Layers that keep all positions.
    pub full: u32,
    /// Layers with sliding windows, within what the former serve.
    pub window: u32,
    /// Recurrent layers, within what the first serve.
    pub state: u32,
}

/// Pages of one request, and the lengths to which they are filled.
///
/// Lengths are in tokens: `protected ≤ committed ≤ planned ≤ allocated`. Here `protected` is
/// the length of `protected_blocks` whole blocks, and `allocated` the length of all `pages`. A
/// request without a slot holds nothing.
#[derive(Debug)]
pub(crate) struct RequestKv {
    /// Namespace in which its prefix is cached, with a slot or without.
    pub(super) namespace: Namespace,
    /// The slot's page tables: for each block of positions in turn, a page of each group that
    /// keeps all positions.
    pub(super) pages: Vec<u32>,
    /// Pages of the groups with windows.
    pub(super) windows: HeldWindows,
    /// States of recurrent layers.
    pub(super) states: HeldStates,
    /// Cached prefix that each kind of layers could serve when the slot was given.
    pub(super) found: Found,
    /// Number of blocks in `pages`.
    pub(super) blocks: u32,
    /// Number of leading blocks whose pages plans have told the workers.
    pub(super) sent_blocks: u32,
    /// Number of leading blocks that the cache owns, locked through `node`.
    pub(super) protected_blocks: u32,
    pub(super) node: NodeId,
    /// Upper bound of the slot's KV length after all planned steps.
    pub(super) planned: u32,
    /// Length of the final KV: all positions below it hold exactly the request's tokens.
    pub(super) committed: u32,
    /// The drafter's KV.
    pub(super) drafted: Drafted,
    /// Number of leading blocks that are noted as drafted.
    pub(super) marked_blocks: u32,
}

impl RequestKv {
    /// Returns the state of a request without a slot.
    pub fn none(namespace: Namespace) -> Self {
        Self {
            namespace,
            pages: Vec::new(),
            windows: HeldWindows::default(),
            states: HeldStates::default(),
            found: Found::default(),
            blocks: 0,
            sent_blocks: 0,
            protected_blocks: 0,
            node: ROOT,
            planned: 0,
            committed: 0,
            drafted: Drafted::NONE,
            marked_blocks: 0,
        }
    }

    /// Returns the number of pages of each group that the request holds, shared ones included.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the upper bound of the slot's KV length after all planned steps.
    pub fn planned(&self) -> u32 {
        self.planned
    }

    /// Returns the number of tokens whose KV is final.
    pub fn committed(&self) -> u32 {
        self.committed
    }

    /// Returns the cached prefix that each kind of layers could serve when the slot was given.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Returns the live state, and the cached one that is copied into it when the slot opens.
    pub fn opening_states(&self) -> (Option<u32>, Option<u32>) {
        (self.states.live(), self.states.restore())
    }

    /// Returns true if the cached prefix has the drafter's KV too, or if there is no prefix.
    pub fn is_prefix_drafted(&self) -> bool {
        self.drafted.prefix
    }

    /// Makes room for pages of `more` blocks, so that growing does not allocate. There are
    /// `groups` groups that keep all positions, and `windows` with windows.
    pub fn reserve_blocks(&mut self, more: usize, groups: usize, windows: usize) {
        self.pages.reserve(more * groups);
        self.windows.reserve(more * windows);
        self.states.reserve();
    }

    /// Returns true if there are pages that no plan has told the workers yet.
    pub fn has_unsent_pages(&self) -> bool {
        self.sent_blocks < self.blocks
    }

    /// Appends the pages to `list` that no plan has told the workers yet, and counts them as
    /// told: for each block a page of each of the `groups` groups that keep all positions, then
    /// one of each of the `windows` groups with windows, 0 where it has none.
    pub fn take_unsent_pages(&mut self, groups: usize, windows: usize, list: &mut Vec<u32>) {
        let from = std::mem::replace(&mut self.sent_blocks, self.blocks) as usize;
        let pages = &self.pages[from * groups..];
        if windows == 0 {
            list.extend_from_slice(pages);
            return;
        }
        let seen = self.windows.blocks(windows).skip(from);
        for (block, seen) in pages.chunks(groups).zip(seen) {
            list.extend_from_slice(block);
            list.extend_from_slice(seen);
        }
    }

    /// Moves the slot on by the most tokens of a planned step.
    pub fn plan(&mut self, tokens: u32) {
        self.planned += tokens;
    }

    /// Ends the text at `len` tokens, although more may have been accepted.
    pub fn truncate(&mut self, len: u32) {
        self.committed = self.committed.min(len);
    }

    /// Forgets everything, after the pages have been given back or are gone.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.windows.clear();
        self.states.clear();
        self.found = Found::default();
        self.blocks = 0;
        self.sent_blocks = 0;
        self.protected_blocks = 0;
        self.node = ROOT;
        self.planned = 0;
        self.committed = 0;
        self.drafted = Drafted::NONE;
        self.marked_blocks = 0;
    }
}
