//! Buffers for a batch's work items and for partial results.

use std::sync::Arc;

use lockstep_backend::AttentionShape;

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Stream};

/// Words of the list before the shares of rows, and words of a share, as in `work.cuh`.
const SHARES: usize = 4;
const SHARE: usize = 4;
/// Positions of a span, as in `work.cuh`.
const SPAN: usize = 256;
/// Largest number of parts that get room: enough for 64 requests of 32 heads over 8,192
/// positions each.
const MOST_PARTS: usize = 1 << 16;

/// Sizes that a [`Work`] has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkLimits {
    /// Requests of a batch.
    pub rows: usize,
    /// Partial results: one for each head of each new token and span of 256 positions. A
    /// request whose parts have no room is attended in one piece. Its bits are equal then, but
    /// it uses less of the device at once.
    pub parts: usize,
}

impl WorkLimits {
    /// Sizes for batches of up to `tokens` new tokens and `rows` requests, each of up to
    /// `positions` positions.
    pub fn of(shape: &AttentionShape, tokens: usize, rows: usize, positions: usize) -> Self {
        let parts = match positions.div_ceil(SPAN) {
            0 | 1 => 0,
            spans => tokens
                .saturating_mul(shape.heads)
                .saturating_mul(spans)
                .min(MOST_PARTS),
        };
        Self { rows, parts }
    }

    /// Bytes on the device for values of `columns` columns.
    pub fn bytes(&self, columns: usize) -> u64 {
        let [list, parts] = self.words(columns);
        (list as u64).saturating_add(parts as u64).saturating_mul(4)
    }

    /// Words of the list and words of the parts.
    fn words(&self, columns: usize) -> [usize; 2] {
        let list = self.rows.saturating_mul(SHARE).saturating_add(SHARES);
        [list, self.parts.saturating_mul(columns + 2)]
    }

    /// Sizes that suffice for both.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            rows: self.rows.max(other.rows),
            parts: self.parts.max(other.parts),
        }
    }
}

/// Numbers of a batch's work items for each key and value head, and of its partial results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Tiles of 16 queries over some spans.
    pub items: u32,
    /// Wide tiles, of 64 or 32 queries, over some spans.
    pub wide_items: u32,
    /// Results of one query over one span.
    pub parts: u32,
}

/// Work items of a batch, and partial results of attention.
pub struct Work {
    limits: WorkLimits,
    columns: usize,
    /// True if the last batch may have wide items.
    pub(super) may_be_wide: bool,
    list: Buffer<u32>,
    parts: Buffer<f32>,
}

impl Work {
    /// Allocates room for values of `columns` columns.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(
        context: &Arc<Context>,
        columns: usize,
        limits: WorkLimits,
    ) -> Result<Self, CudaError> {
        let [words, floats] = limits.words(columns);
        Ok(Self {
            limits,
            columns,
            may_be_wide: false,
            list: Buffer::new(context, words, "attention's work list")?,
            parts: Buffer::new(context, floats, "attention's partial results")?,
        })
    }

    /// Waits for the work queued before, and returns how the last batch was cut: the number of
    /// items, and of parts that they leave.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn cut(&self, stream: &Stream) -> Result<Cut, CudaError> {
        let mut words = [0; 3];
        stream.download(&self.list, &mut words)?;
        let [items, wide_items, parts] = words;
        Ok(Cut {
            items,
            wide_items,
            parts,
        })
    }

    /// Sizes that this room was allocated for.
    pub(crate) fn limits(&self) -> WorkLimits {
        self.limits
    }
    pub(super) fn list(&self) -> u64 {
        self.list.address()
    }
    pub(super) fn parts(&self) -> u64 {
        self.parts.address()
    }
    pub(super) fn rows(&self) -> usize {
        self.limits.rows
    }
    pub(super) fn most_parts(&self) -> usize {
        self.limits.parts
    }

    /// # Panics
    /// Panics if values are of another width, or there are more rows than there is room for.
    pub(super) fn expect(&self, shape: &AttentionShape, rows: usize) {
        let Self {
            limits, columns, ..
        } = self;
        assert!(
            *columns == shape.value_dim() && rows <= limits.rows,
            "work for values of {columns} columns and {limits:?}, where there are {rows} rows and {shape:?}"
        );
    }
}
