//! The device's copy of a batch, which kernels read.

use lockstep_backend::{BackendError, Batch, InputLimits, KvShape, Row};

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
        })
    }

    /// Bytes of a batch of these limits.
    pub(crate) fn bytes(limits: &InputLimits) -> u64 {
        let of = |count: usize, bytes: usize| (count as u64).saturating_mul(bytes as u64);
        let groups = limits.groups * size_of::<u32>();
        of(limits.tokens, 3 * size_of::<u32>() + groups)
            .saturating_add(of(limits.requests, size_of::<Row>()))
            .saturating_add(of(limits.pages, groups))
            .saturating_add(of(limits.mask_words, size_of::<u64>()))
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

fn copy<T: Copy>(from: &[T], to: &mut Vec<T>) {
    to.clear();
    to.extend_from_slice(from);
}
