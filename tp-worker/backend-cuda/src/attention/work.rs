//! Room for how a batch is cut into work, and for partial results.

use std::sync::Arc;

use lockstep_backend::AttentionShape;

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::Buffer;

/// Words before the rows' own, in `work.cuh`.
const FIRST: usize = 2;

/// What there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkLimits {
    /// Requests of a batch.
    pub rows: usize,
    /// Partial results: one for each head of each new token and span of 256
    /// positions. Requests for whose parts there is no room are attended in one
    /// piece, with the same bits and less of the device at once.
    pub parts: usize,
}

/// How a batch is cut into work, and partial results of attention.
pub struct Work {
    limits: WorkLimits,
    head_dim: usize,
    list: Buffer<u32>,
    parts: Buffer<f32>,
}

impl Work {
    /// Takes room, for heads of one width.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(
        context: &Arc<Context>,
        head_dim: usize,
        limits: WorkLimits,
    ) -> Result<Self, CudaError> {
        let words = FIRST + 2 * limits.rows;
        let floats = limits.parts * (head_dim + 2);
        Ok(Self {
            limits,
            head_dim,
            list: Buffer::new(context, words, "attention's work list")?,
            parts: Buffer::new(context, floats, "attention's partial results")?,
        })
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
    /// If heads are of another width, or rows are more.
    pub(super) fn expect(&self, shape: &AttentionShape, rows: usize) {
        let Self {
            limits, head_dim, ..
        } = self;
        assert!(
            *head_dim == shape.head_dim && rows <= limits.rows,
            "work for heads of {head_dim} columns and {limits:?}, where there are {rows} rows and {shape:?}"
        );
    }
}
