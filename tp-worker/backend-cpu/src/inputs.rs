//! The device's copy of a batch, which kernels read.

use lockstep_backend::{BackendError, Batch, InputLimits, Row};

/// A copy of a batch, in memory that is reused.
pub struct CpuInputs {
    limits: InputLimits,
    /// Number of the staged pass. Whatever is planned for a pass is planned once.
    pub(crate) pass: u64,
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) cells: Vec<u32>,
    pub(crate) rows: Vec<Row>,
    /// The rows' page tables, one after the other.
    pub(crate) pages: Vec<u32>,
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
            cells: tokens()?,
            rows: room(limits.requests)?,
            pages: room(limits.pages)?,
            wanted: tokens()?,
            masks: room(limits.mask_words)?,
        })
    }

    /// Bytes of a batch of these limits.
    pub(crate) fn bytes(limits: &InputLimits) -> u64 {
        let of = |count: usize, bytes: usize| (count as u64).saturating_mul(bytes as u64);
        of(limits.tokens, 4 * size_of::<u32>())
            .saturating_add(of(limits.requests, size_of::<Row>()))
            .saturating_add(of(limits.pages, size_of::<u32>()))
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
        self.rows.clear();
        self.pages.clear();
        for row in batch.rows {
            let pages_start = self.pages.len() as u32;
            let table = batch.page_table(row, self.limits.page_size);
            self.pages.extend_from_slice(table);
            self.rows.push(Row {
                pages_start,
                ..*row
            });
        }
    }

    /// Panics unless the batch was staged for a cache with pages of `page_size` tokens.
    pub(crate) fn expect(&self, page_size: usize) {
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
