//! From hidden states to logits on the host.

use std::ops::Range;

use lockstep_backend::{Backend, BackendError, Batch, Chosen, Owners, Rows};

use super::size::Size;
use super::{Transformer, notes};
use crate::{ModelError, crossing::Crossing};

/// Who takes the wanted logits of a pass, and the tokens that are chosen from them.
pub trait LogitSink {
    /// Takes the next rows of which the host reads any.
    fn take(&mut self, block: LogitBlock<'_>);
    /// Takes what became of the requests whose tokens the device chose, behind all
    /// logits.
    fn outcomes(&mut self, _chosen: Chosen<'_>) {}
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
    /// `[rows, vocab]`, row-major, of which those that the device chose from are
    /// unspecified.
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
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        size: Size,
        computed: bool,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        let wanted = size.wanted.all;
        if wanted == 0 {
            backend.arrive()?;
            return notes::check(self.takes_notes(), backend);
        }
        // The wanted rows are among those of all tokens, or all that there are.
        let wide = self.keeps_last_hidden();
        let normed = if wide { size.tokens } else { size.wanted }.own;
        backend.set_rows(&mut self.buffers.layer.normed, normed);
        if !computed {
            self.cross(backend, size)?;
        }
        let (axis, rank) = (self.shape.axis, self.shard.topology.world.rank);
        let start = self.rows_of(rank, wanted).start;
        for first in (0..wanted).step_by(self.limits.logit_block_rows) {
            let block = first..wanted.min(first + self.limits.logit_block_rows);
            let among = if self.world.is_some() { wanted } else { normed };
            if !computed {
                self.multiply(backend, block.clone(), among, wide);
                self.choose(backend, first);
            }
            let hosts = |row| !self.chooses || batch.choices.is_hosts_row(row);
            if !block.clone().any(hosts) {
                continue;
            }
            self.own(&block, wanted);
            let owners = Owners {
                widths: &self.vocab_widths,
                rows: &self.owned,
            };
            let b = &mut self.buffers;
            let logits = backend.gather_to_host(axis, &b.logits, owners, &mut b.host_logits)?;
            notes::check(self.notes.is_some(), backend)?;
            let (owned, vocab) = (&self.owned[rank], self.model.vocab_size);
            let first = (block.start + owned.start).saturating_sub(start);
            // What is behind the batch's rows is padding.
            let rows = owned
                .len()
                .min(batch.logit_tokens.len().saturating_sub(first));
            if rows > 0 {
                sink.take(LogitBlock {
                    first,
                    rows,
                    logits: &logits[..rows * vocab],
                    vocab,
                });
            }
        }
        if !computed {
            self.accept(backend, cache);
        }
        Ok(self.outcomes(backend, batch, sink)?)
    }

    /// Chooses from the block of logits that begins with wanted row `first`, where the
    /// device does.
    pub(super) fn choose(&mut self, backend: &mut B, first: usize) {
        if let (true, Some(device)) = (self.chooses, backend.chooser()) {
            device.choose(&mut self.buffers.logits, first, &mut self.inputs);
        }
    }

    /// Verifies drafts by what was chosen, where the device did.
    pub(super) fn accept(&mut self, backend: &mut B, cache: &mut B::KvCache) {
        if let (true, Some(device)) = (self.chooses, backend.chooser()) {
            device.accept(&mut self.inputs, cache);
        }
    }

    /// Waits for what became of the device's requests, if there are any.
    fn outcomes(
        &mut self,
        backend: &mut B,
        batch: &Batch<'_>,
        sink: &mut dyn LogitSink,
    ) -> Result<(), BackendError> {
        let choices = &batch.choices;
        let own = (0..choices.choices.len()).any(|request| !choices.is_hosts(request));
        if let (true, Some(device)) = (self.chooses && own, backend.chooser()) {
            sink.outcomes(device.outcomes(&mut self.inputs)?);
        }
        Ok(())
    }

    /// This rank's columns of the logits of all rows, where all are wanted and one block.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone.
    pub(super) fn head(&mut self, backend: &mut B, size: Size) -> Result<(), BackendError> {
        let rows = size.wanted.all;
        self.cross(backend, size)?;
        self.multiply(backend, 0..rows, rows, false);
        Ok(())
    }

    /// Brings the normed rows that logits are wanted of to all DP ranks, where
    /// there are several.
    fn cross(&mut self, backend: &mut B, size: Size) -> Result<(), BackendError> {
        let picks = self.keeps_last_hidden() && size.wanted.own < size.tokens.own;
        let b = &mut self.buffers;
        let (Some(world), Some(all)) = (&self.world, &mut b.layer.all) else {
            return Ok(());
        };
        let mut own = &b.layer.normed;
        if let (true, Some(picked)) = (picks, &mut b.wanted) {
            backend.set_rows(picked, size.wanted.own);
            let rows = Rows::Wanted(&self.inputs, 0..size.wanted.own);
            backend.gather_rows(own, rows, picked);
            own = picked;
        }
        backend.set_rows(&mut all.gathered, size.wanted.all);
        let Crossing { counts, first, .. } = &world.wanted;
        backend.all_gather_rows(self.shape.axis, own, *first, counts, &mut all.gathered)
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
