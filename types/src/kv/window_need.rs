//! The pages that a group of layers with a sliding window needs.

/// Sizes on which the pages of a group with a window depend, in one DP rank.
///
/// A running request has pages of the positions that its next queries see, and of those that
/// its steps in flight write; all other pages have been given back. So the running requests
/// need a bounded number of pages, however long their texts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowNeed {
    /// Positions that a query sees, its own included; the widest window of several groups.
    pub window: usize,
    /// Tokens per page.
    pub page_size: usize,
    /// Requests that run at once.
    pub requests: usize,
    /// Prompt tokens of a step.
    pub prompt_tokens: usize,
    /// Steps that may be in flight.
    pub steps_in_flight: usize,
    /// Tokens beyond the committed ones that decode steps may write for one request.
    pub reserve: usize,
}

impl WindowNeed {
    /// Returns the most pages that running requests use, page 0 included.
    ///
    /// A request keeps the window of the last page boundary below its committed length, or
    /// below the token before, so up to `window + page_size` positions behind that length, and
    /// up to `reserve` positions before it beside chunks of prompts. Positions anywhere touch
    /// one page more at each end. It may also keep the window at the end of its prompt, until
    /// it can be cached. Most prompts are cached while their requests run; then these pages are
    /// free for the prefix cache.
    pub fn least_pages(&self) -> usize {
        let each = (self.window.saturating_add(self.reserve)).div_ceil(self.page_size) + 4;
        let each = each.saturating_add(self.window.div_ceil(self.page_size) + 1);
        let chunks = self.prompt_tokens.saturating_mul(self.steps_in_flight);
        let chunks = chunks.div_ceil(self.page_size);
        each.saturating_mul(self.requests)
            .saturating_add(chunks)
            .saturating_add(1)
    }

    /// Returns the pages of a group's pool beside groups of `num_pages` pages that keep all
    /// positions. A page of any group belongs to a block that has one in each of these, so
    /// more than `num_pages` are of no use.
    pub fn pages(&self, num_pages: usize) -> usize {
        self.least_pages().min(num_pages)
    }
}
