//! From hidden states to logits on the host.

use std::ops::Range;

use lockstep_backend::{Backend, Choice, How, Owners, Rows};

use super::Transformer;
use super::size::Size;
use crate::{ModelError, crossing::Crossing};

/// Who takes the wanted logits of a pass, or the tokens that are chosen from them.
pub trait LogitSink {
    /// How tokens are chosen, where the device can, for each of `batch.logit_tokens`;
    /// nothing: all logits are wanted on the host.
    fn choices(&self) -> &[Choice] {
        &[]
    }
    /// Takes the next rows.
    fn take(&mut self, block: LogitBlock<'_>);
}

/// Wants all logits.
pub(super) struct Whole<'a>(pub &'a mut dyn FnMut(LogitBlock<'_>));

impl LogitSink for Whole<'_> {
    fn take(&mut self, block: LogitBlock<'_>) {
        (self.0)(block);
    }
}

/// Some rows of logits, on the host of the rank that leads.
#[derive(Debug, Clone, Copy)]
pub struct LogitBlock<'a> {
    /// Index in `batch.logit_tokens` of the first row.
    pub first: usize,
    /// How many rows.
    pub rows: usize,
    /// One for each row where the device chose them, which it did for all rows but those
    /// whose [`LogitSink::choices`] are the host's; otherwise none.
    pub tokens: &'a [u32],
    /// `[rows, vocab]`, row-major, of which those that the device chose from are
    /// unspecified; none where it chose from all.
    pub logits: &'a [f32],
    /// Columns.
    pub vocab: usize,
}

impl<B: Backend> Transformer<B> {
    /// The head over the wanted rows, in blocks, unless they are one that is `computed`.
    /// With several DP ranks over those of all, of which each gets its own.
    pub(super) fn logits(
        &mut self,
        backend: &mut B,
        size: Size,
        computed: bool,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        let wanted = size.wanted.all;
        if wanted == 0 {
            return Ok(());
        }
        // The wanted rows are among those of all tokens, or all that there are.
        let wide = self.keeps_last_hidden();
        let normed = if wide { size.tokens } else { size.wanted }.own;
        backend.set_rows(&mut self.buffers.layer.normed, normed);
        self.cross(backend, size, wide)?;
        let (axis, rank) = (self.shape.axis, self.shard.topology.world.rank);
        let start = self.rows_of(rank, wanted).start;
        for first in (0..wanted).step_by(self.limits.logit_block_rows) {
            let block = first..wanted.min(first + self.limits.logit_block_rows);
            let among = if self.world.is_some() { wanted } else { normed };
            if !computed {
                self.multiply(backend, block.clone(), among, wide);
            }
            self.own(&block, wanted);
            let owners = Owners {
                widths: &self.vocab_widths,
                rows: &self.owned,
            };
            let (b, tokens) = (&mut self.buffers, &mut self.chosen);
            tokens.clear();
            let choices = match self.vocab_widths.len() {
                1 => sink.choices().get(block.clone()).unwrap_or_default(),
                // A rank has a part of each row.
                _ => &[],
            };
            if let (false, Some(device)) = (choices.is_empty(), backend.chooser()) {
                device.choose(&mut b.logits, choices, tokens)?;
            }
            let hosts = |choice: &Choice| choice.how == How::Host;
            let logits = match tokens.is_empty() || choices.iter().any(hosts) {
                true => backend.gather_to_host(axis, &b.logits, owners, &mut b.host_logits)?,
                false => &[],
            };
            if !self.owned[rank].is_empty() {
                sink.take(LogitBlock {
                    first: block.start + self.owned[rank].start - start,
                    rows: self.owned[rank].len(),
                    tokens,
                    logits,
                    vocab: self.model.vocab_size,
                });
            }
        }
        Ok(())
    }

    /// This rank's columns of the logits of all normed rows.
    pub(super) fn head(&mut self, backend: &mut B) {
        let b = &mut self.buffers;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        backend.matmul(&b.layer.normed, head, None, &mut b.logits);
    }

    /// Brings the normed rows that logits are wanted of to all DP ranks, where
    /// there are several.
    fn cross(&mut self, backend: &mut B, size: Size, wide: bool) -> Result<(), ModelError> {
        let b = &mut self.buffers;
        let (Some(world), Some(all)) = (&self.world, &mut b.layer.all) else {
            return Ok(());
        };
        let mut own = &b.layer.normed;
        if let (true, Some(picked)) = (wide, &mut b.wanted) {
            backend.set_rows(picked, size.wanted.own);
            let rows = Rows::Wanted(&self.inputs, 0..size.wanted.own);
            backend.gather_rows(own, rows, picked);
            own = picked;
        }
        backend.set_rows(&mut all.gathered, size.wanted.all);
        let Crossing { counts, first, .. } = &world.wanted;
        backend.all_gather_rows(self.shape.axis, own, *first, counts, &mut all.gathered)?;
        Ok(())
    }

    /// This rank's columns of the logits of `block`, which are some of `among`
    /// rows.
    fn multiply(&mut self, backend: &mut B, block: Range<usize>, among: usize, wide: bool) {
        let b = &mut self.buffers;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let (rows, crossed) = match &b.layer.all {
            Some(all) => (&all.gathered, true),
            None => (&b.layer.normed, false),
        };
        backend.set_rows(&mut b.logits, block.len());
        if block.len() == among {
            return backend.matmul(rows, head, None, &mut b.logits);
        }
        backend.set_rows(&mut b.head_input, block.len());
        let picks = match wide && !crossed {
            true => Rows::Wanted(&self.inputs, block),
            false => Rows::List(&self.numbers[block]),
        };
        backend.gather_rows(rows, picks, &mut b.head_input);
        backend.matmul(&b.head_input, head, None, &mut b.logits);
    }

    /// Sets who gets which rows of a block: the first rank of each DP rank its own.
    fn own(&mut self, block: &Range<usize>, wanted: usize) {
        let inside = |row: usize| row.clamp(block.start, block.end) - block.start;
        for rank in 0..self.owned.len() {
            let rows = match rank % self.shard.topology.attention.size {
                0 => self.rows_of(rank, wanted),
                _ => 0..0,
            };
            self.owned[rank] = inside(rows.start)..inside(rows.end);
        }
    }

    /// The rows of rank `rank`'s DP rank among all that are `wanted`.
    fn rows_of(&self, rank: usize, wanted: usize) -> Range<usize> {
        match &self.world {
            Some(world) => world.wanted.rows[rank].clone(),
            None => 0..wanted,
        }
    }
}
