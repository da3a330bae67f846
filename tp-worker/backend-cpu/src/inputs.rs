//! The device's copy of a batch, which kernels read.

use lockstep_backend::{BackendError, Batch, InputLimits, KvShape, Row, RowState, StateKeep};

/// A copy of a batch, in memory that is reused.
pub struct CpuInputs {
    limits: InputLimits,
    /// Number of the staged pass. Whatever is planned for a pass is planned once.
    pub(crate) pass: u64,
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// Each token's cell, group after group.
    cells: Vec<u32>,
    pub(crate) rows: Vec<Row>,
    /// The rows' page tables, one after the other, group after group.
    pages: Vec<u32>,
    pub(crate) wanted: Vec<u32>,
    pub(crate) masks: Vec<u64>,
    /// State of each row; empty for a model without recurrent layers.
    pub(crate) states: Vec<RowState>,
    pub(crate) replays: Vec<u32>,
    pub(crate) keeps: Vec<StateKeep>,
    /// Place of each row's adapter; empty if no row has one.
    pub(crate) adapters: Vec<Option<u16>>,
    /// Space for the numbers of all states that the batch writes.
    named: Vec<u32>,
}

impl CpuInputs {
    pub(crate) fn new(limits: &InputLimits) -> Result<Self, BackendError> {
        let tokens = || room(limits.tokens);
        Ok(Self {
            limits: *limits,
            pass: 0,
            tokens: tokens()?,
            positions: tokens()?,
            cells: room(limits.tokens.saturating_mul(limits.groups))?,
            rows: room(limits.requests)?,
            pages: room(limits.pages.saturating_mul(limits.groups))?,
            wanted: tokens()?,
            masks: room(limits.mask_words)?,
            states: room(stateful(limits))?,
            replays: room(limits.replays)?,
            keeps: room(limits.keeps())?,
            adapters: room(limits.requests)?,
            named: room(stateful(limits) + limits.keeps())?,
        })
    }

    /// Bytes of a batch of these limits.
    pub(crate) fn bytes(limits: &InputLimits) -> u64 {
        let of = |count: usize, bytes: usize| (count as u64).saturating_mul(bytes as u64);
        let groups = limits.groups * size_of::<u32>();
        of(limits.tokens, 3 * size_of::<u32>() + groups)
            .saturating_add(of(
                limits.requests,
                size_of::<Row>() + size_of::<Option<u16>>(),
            ))
            .saturating_add(of(limits.pages, groups))
            .saturating_add(of(limits.mask_words, size_of::<u64>()))
            .saturating_add(of(
                stateful(limits),
                size_of::<RowState>() + size_of::<u32>(),
            ))
            .saturating_add(of(limits.replays, size_of::<u32>()))
            .saturating_add(of(
                limits.keeps(),
                size_of::<StateKeep>() + size_of::<u32>(),
            ))
    }

    /// Stages the batch of pass number `pass`: see [`lockstep_backend::Passes::stage`].
    pub(crate) fn stage(&mut self, batch: &Batch<'_>, pass: u64) {
        self.limits.expect(batch);
        self.pass = pass;
        copy(batch.tokens, &mut self.tokens);
        copy(batch.positions, &mut self.positions);
        copy(batch.cells, &mut self.cells);
        copy(batch.logit_tokens, &mut self.wanted);
        copy(batch.masks, &mut self.masks);
        copy(batch.adapters, &mut self.adapters);
        self.stage_states(batch);
        let (groups, page_size) = (self.limits.groups, self.limits.page_size);
        self.rows.clear();
        self.pages.clear();
        for group in 0..groups {
            let tables = batch.tables(group, groups);
            for row in batch.rows {
                let table = &tables[row.pages_start as usize..][..row.pages(page_size)];
                self.pages.extend_from_slice(table);
            }
        }
        let mut pages_start = 0;
        for row in batch.rows {
            self.rows.push(Row {
                pages_start,
                ..*row
            });
            pages_start += row.pages(page_size) as u32;
        }
    }

    /// Stages the states of the rows.
    ///
    /// # Panics
    /// Panics if two rows have one state or one place of records, or if a copy is kept in a state
    /// that the batch also has for something else: threads write them at once.
    fn stage_states(&mut self, batch: &Batch<'_>) {
        copy(batch.states, &mut self.states);
        copy(batch.replays, &mut self.replays);
        copy(batch.keeps, &mut self.keeps);
        self.named.clear();
        self.named
            .extend(batch.states.iter().map(|row| row.records));
        assert!(ascend(&mut self.named), "rows have records of their own");
        self.named.clear();
        self.named.extend(batch.states.iter().map(|row| row.state));
        self.named.extend(batch.keeps.iter().map(|keep| keep.state));
        assert!(
            ascend(&mut self.named),
            "rows and copies have states of their own"
        );
    }

    /// Returns the last token of a row before its token `last` that its token `node` goes on from:
    /// the one before in a plain row, in a masked row the last that the node's mask shows.
    pub(crate) fn ancestor(&self, row: &Row, node: usize, last: usize) -> Option<usize> {
        let Some(mask) = row.mask else {
            return last.checked_sub(1);
        };
        let words = row.mask_words();
        let mask = &self.masks[mask as usize + node * words..][..words];
        let before = |(index, word): (usize, &u64)| {
            let bits = last.saturating_sub(64 * index).min(64);
            let seen = match bits {
                0 => 0,
                _ => word & (u64::MAX >> (64 - bits)),
            };
            let highest = 63_usize.checked_sub(seen.leading_zeros() as usize)?;
            Some(64 * index + highest)
        };
        mask.iter().enumerate().rev().find_map(before)
    }

    /// Returns each token's cell in the cache of a group.
    pub(crate) fn cells(&self, group: usize) -> &[u32] {
        self.of_group(&self.cells, group)
    }

    /// Returns the rows' page tables of a group, one after the other.
    pub(crate) fn pages(&self, group: usize) -> &[u32] {
        self.of_group(&self.pages, group)
    }

    fn of_group<'a>(&self, list: &'a [u32], group: usize) -> &'a [u32] {
        let each = list.len() / self.limits.groups;
        &list[group * each..][..each]
    }

    /// Panics unless the batch was staged for the cache's group, and for pages of its size.
    pub(crate) fn expect(&self, cache: &KvShape) {
        let (group, page_size) = (cache.group, cache.page_size);
        assert!(
            group < self.limits.groups,
            "a batch for {} groups does not fit a cache of group {group}",
            self.limits.groups
        );
        assert!(
            self.limits.page_size == page_size,
            "a batch over pages of {} tokens does not fit a cache of pages of {page_size}",
            self.limits.page_size
        );
    }
}

fn room<T>(len: usize) -> Result<Vec<T>, BackendError> {
    let mut room = Vec::new();
    let no_room = |_| BackendError::OutOfMemory {
        what: "a batch",
        bytes: len.saturating_mul(size_of::<T>()),
    };
    room.try_reserve_exact(len).map_err(no_room)?;
    Ok(room)
}

/// Returns the most rows with a state.
fn stateful(limits: &InputLimits) -> usize {
    if limits.replays > 0 {
        limits.requests
    } else {
        0
    }
}

/// Sorts numbers, and returns true if none occurs twice.
fn ascend(numbers: &mut [u32]) -> bool {
    numbers.sort_unstable();
    numbers.is_sorted_by(|one, next| one < next)
}

fn copy<T: Copy>(from: &[T], to: &mut Vec<T>) {
    to.clear();
    to.extend_from_slice(from);
}
