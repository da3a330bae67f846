//! Scales of groups of inputs, as floats in memory.

use std::ops::Range;
use std::sync::Arc;

use super::words::Direction;
use crate::weights::{CheckpointDtype, HostBlock};

/// A matrix `[outputs, groups]` of scales, or a part of one.
#[derive(Debug, Clone)]
pub struct GroupScales<'a> {
    /// Name of the tensor, for messages.
    pub tensor: Arc<str>,
    /// Element type.
    pub dtype: CheckpointDtype,
    /// Rows of scales.
    pub memory: HostBlock<'a>,
    /// Bytes of such a row.
    pub width: usize,
    /// Direction in which memory has rows.
    pub rows: Direction,
    /// True if there is one scale for all outputs.
    pub single: bool,
}

impl GroupScales<'_> {
    /// Returns the part with these outputs and groups.
    #[must_use]
    pub fn part(&self, outputs: &Range<usize>, groups: &Range<usize>) -> Self {
        let outputs = match self.single {
            true => 0..1,
            false => outputs.clone(),
        };
        let (rows, cols) = match self.rows {
            Direction::Outputs => (outputs, groups.clone()),
            Direction::Inputs => (groups.clone(), outputs),
        };
        let (size, HostBlock { offset, stride, .. }) = (self.dtype.bytes(), self.memory);
        Self {
            memory: HostBlock {
                offset: offset + rows.start * stride + cols.start * size,
                rows: rows.len(),
                ..self.memory
            },
            width: cols.len() * size,
            ..self.clone()
        }
    }

    /// Returns the same scales in `bytes`, row after row.
    pub(super) fn moved<'b>(&self, bytes: &'b [u8]) -> GroupScales<'b> {
        GroupScales {
            tensor: Arc::clone(&self.tensor),
            dtype: self.dtype,
            memory: HostBlock {
                bytes,
                offset: 0,
                stride: self.width,
                rows: self.memory.rows,
            },
            width: self.width,
            rows: self.rows,
            single: self.single,
        }
    }

    /// Returns the scale of a group of an output; `None` if memory does not hold it.
    pub(super) fn at(&self, output: usize, group: usize) -> Option<f32> {
        let output = if self.single { 0 } else { output };
        let (row, col) = match self.rows {
            Direction::Outputs => (output, group),
            Direction::Inputs => (group, output),
        };
        let row = self.memory.row(row, self.width)?;
        let bytes = row.get(col * self.dtype.bytes()..)?;
        let mut scale = [f32::NAN];
        self.dtype.decode(bytes, &mut scale);
        Some(scale[0])
    }

    /// Returns true if a scale, or `most` times it, is no finite number.
    pub(super) fn is_wrong(&self, most: f32) -> bool {
        let mut values = vec![0.0; self.width / self.dtype.bytes()];
        let mut rows = (0..self.memory.rows).filter_map(|row| self.memory.row(row, self.width));
        rows.any(|row| {
            self.dtype.decode(row, &mut values);
            values.iter().any(|scale| !(scale * most).is_finite())
        })
    }
}
