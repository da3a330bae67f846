//! Chains that come with a batch: their first pass is a batch of its own behind it.

use lockstep_backend::{Batch, ChainLimits};

use super::{CHAIN_AT, CHAIN_WORDS, HEADER_WORDS, ROW_WORDS, fill::fill};

/// Sizes of the lists for the largest chains: words of an element, and number of elements.
pub(super) fn words(limits: &ChainLimits) -> [(usize, usize); 5] {
    [
        (HEADER_WORDS, usize::from(limits.chains > 0)),
        // Tokens, positions, cells and sources.
        (4, limits.tokens),
        // Each chain has a row, a wanted token and a request.
        (ROW_WORDS + 2, limits.chains),
        (1, limits.pages),
        (super::trees::WORDS, limits.trees),
    ]
}

/// Words of the chains' first pass alone.
pub(super) fn first_words(limits: &ChainLimits) -> u64 {
    let each = words(limits).into_iter();
    each.fold(0, |sum, (each, count)| {
        sum + (each as u64).saturating_mul(count as u64)
    })
}

/// Writes `batch`, and behind it the first pass of its chains. Returns the words of both.
pub(super) fn fill_with_chains(
    words: &mut [u32],
    batch: &Batch<'_>,
    groups: usize,
    page_size: usize,
) -> usize {
    let own = |row: usize| batch.rows[row].pages(page_size);
    let len = fill(words, batch, groups, &[], &own);
    let mut first = 0;
    if let Some(chain) = &batch.chain {
        let pages = |row| chain.pages(batch, row, page_size);
        first = fill(&mut words[len..], chain.first, 1, chain.sources, &pages);
    }
    (words[CHAIN_AT], words[CHAIN_WORDS]) = (len as u32, first as u32);
    len + first
}
