//! Words of a batch, as `batch.cuh` reads them.

use lockstep_backend::{Batch, Row};

use super::{
    CHAINS, CHOICES, HEADER_WORDS, List, PAGES, ROW_WORDS, ROWS, TOKENS, TREES, WANTED, choices,
    states, trees,
};

/// Mask number of a row without a mask: the row is causal.
const CAUSAL: u32 = u32::MAX;

/// Writes a batch for `groups` groups of layers and returns its number of words. `pages` gives
/// the number of page table entries to write for each row in each group; the tables lie one
/// behind the other. `sources` are the sources of a first pass of chains.
pub(super) fn fill(
    words: &mut [u32],
    batch: &Batch<'_>,
    groups: usize,
    sources: &[u32],
    pages: &dyn Fn(usize) -> usize,
) -> usize {
    let all: usize = (0..batch.rows.len()).map(pages).sum();
    let requests = batch.chain.map_or(&[][..], |chain| chain.requests);
    let trees = batch.chain.map_or(&[][..], |chain| chain.trees);
    fill_counts(words, batch, all);
    let (header, lists) = words.split_at_mut(HEADER_WORDS);
    let mut at = 0;
    let mut list = |which: List, len: usize, write: &mut dyn FnMut(&mut [u32])| {
        header[which.header()] = (HEADER_WORDS + at) as u32;
        write(&mut lists[at..at + len]);
        at += len;
    };
    // Drafts change these lists. They come first, so that a rank can tell its drafts in one
    // piece.
    let plain = [
        (List::Tokens, batch.tokens),
        (List::Positions, batch.positions),
        (List::Parents, batch.choices.parents),
    ];
    for (which, values) in plain {
        list(which, values.len(), &mut |to| to.copy_from_slice(values));
    }
    list(List::Masks, 2 * batch.masks.len(), &mut |to| {
        for (to, mask) in to.as_chunks_mut::<2>().0.iter_mut().zip(batch.masks) {
            *to = [*mask as u32, (*mask >> 32) as u32];
        }
    });
    let plain = [
        (List::Cells, batch.cells),
        (List::Wanted, batch.logit_tokens),
    ];
    for (which, values) in plain {
        list(which, values.len(), &mut |to| to.copy_from_slice(values));
    }
    list(List::Rows, ROW_WORDS * batch.rows.len(), &mut |to| {
        let rows = to.as_chunks_mut::<ROW_WORDS>().0;
        let mut table = 0;
        for (number, (to, row)) in rows.iter_mut().zip(batch.rows).enumerate() {
            *to = row_words(row, table);
            table += pages(number) as u32;
        }
    });
    list(List::Pages, groups * all, &mut |to| {
        let each = to.chunks_exact_mut(all.max(1));
        for (group, to) in each.enumerate() {
            fill_pages(to, batch, batch.tables(group, groups), pages);
        }
    });
    choices::fill(&batch.choices, &mut list);
    list(List::Chains, requests.len(), &mut |to| {
        to.copy_from_slice(requests);
    });
    list(List::Sources, sources.len(), &mut |to| {
        to.copy_from_slice(sources);
    });
    list(List::Trees, trees::WORDS * trees.len(), &mut |to| {
        trees::fill(to, trees);
    });
    states::fill(batch, &mut list);
    HEADER_WORDS + at
}

/// Writes how many elements the lists have. `pages` is the number of page table entries in each
/// group.
fn fill_counts(words: &mut [u32], batch: &Batch<'_>, pages: usize) {
    let chains = batch.chain.map_or(0, |chain| chain.requests.len());
    let trees = batch.chain.map_or(0, |chain| chain.trees.len());
    for (count, len) in [
        (TOKENS, batch.tokens.len()),
        (ROWS, batch.rows.len()),
        (WANTED, batch.logit_tokens.len()),
        (CHOICES, batch.choices.choices.len()),
        (CHAINS, chains),
        (TREES, trees),
        (PAGES, pages),
    ] {
        words[count] = len as u32;
    }
}

/// Writes the rows' page tables among `tables`, one behind the other.
fn fill_pages(
    mut to: &mut [u32],
    batch: &Batch<'_>,
    tables: &[u32],
    pages: &dyn Fn(usize) -> usize,
) {
    for (number, row) in batch.rows.iter().enumerate() {
        let table = &tables[row.pages_start as usize..][..pages(number)];
        let (own, rest) = to.split_at_mut(table.len());
        own.copy_from_slice(table);
        to = rest;
    }
}

/// Words of a row whose page table begins at entry `table`.
fn row_words(row: &Row, table: u32) -> [u32; ROW_WORDS] {
    let mask = row.mask.unwrap_or(CAUSAL);
    [row.start, row.q_len, row.kv_len, table, mask]
}
