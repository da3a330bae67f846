//! From hidden states to logits, and from the device to the host that reads them.

use std::ops::Range;

use lockstep_backend::{
    Axis, Backend, BackendError, Batch, Chosen, Linear, LogitScaling, Masks, Owners, Rows,
};
use lockstep_types::Multipliers;

use super::size::Size;
use super::{Transformer, notes};
use crate::{Exit, ModelCache, ModelError, split::crossing::Crossing};

/// Receiver of the wanted logits of a pass, and of the tokens that are chosen from them.
pub trait LogitSink {
    /// Makes the masks of rows that the device chooses from. It is called before each block of
    /// logits is chosen from, and returns the same masks in the whole pass. Only passes of one
    /// rank may have masks.
    fn masks(&mut self) -> Masks<'_> {
        Masks::default()
    }
    /// Takes the next block of rows, if the host reads any of them.
    fn take(&mut self, block: LogitBlock<'_>);
    /// Takes the outcomes of the requests whose tokens the device chose, after all logits.
    fn outcomes(&mut self, _chosen: Chosen<'_>) {}
}

/// Sink that wants all logits.
pub(super) struct Whole<'a>(pub &'a mut dyn FnMut(LogitBlock<'_>));

impl LogitSink for Whole<'_> {
    fn take(&mut self, block: LogitBlock<'_>) {
        (self.0)(block);
    }
}

/// Some rows of logits, on the host of a DP rank's lead.
#[derive(Debug, Clone, Copy)]
pub struct LogitBlock<'a> {
    /// Index in `batch.logit_tokens` of the first row.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
    /// `[rows, vocab]`, row-major. Rows that the device chose from are unspecified.
    pub logits: &'a [f32],
    /// Number of columns.
    pub vocab: usize,
}

/// Returns what is done to the products of a model's output head; `None` if they are its logits.
pub(in crate::runner) fn scaling(multipliers: &Multipliers) -> Option<LogitScaling> {
    let Multipliers {
        logits: divisor,
        logit_softcap: softcap,
        ..
    } = *multipliers;
    let scales = divisor != 1.0 || softcap.is_some();
    scales.then_some(LogitScaling { divisor, softcap })
}

impl<B: Backend> Transformer<B> {
    /// Computes the logits of the wanted rows in blocks, unless the pass has `computed` its
    /// only block, and hands them to `sink`. With several DP ranks, blocks have rows of all
    /// of them, and each DP rank gets its own.
    pub(super) fn logits(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
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
        // `normed` has the rows of all tokens, or of the wanted ones alone.
        let wide = self.exit() == Exit::HiddenAndLogits;
        let normed = if wide { size.tokens } else { size.wanted }.own;
        backend.set_rows(&mut self.buffers.layer.normed, normed);
        if !computed {
            self.cross(backend, size)?;
        }
        let chosen = computed && !self.cut;
        for first in (0..wanted).step_by(self.limits.logit_block_rows) {
            let block = first..wanted.min(first + self.limits.logit_block_rows);
            let among = if self.world.is_some() { wanted } else { normed };
            if !computed {
                self.multiply(backend, block.clone(), among, wide);
            }
            if !chosen {
                self.mask(backend, &block, wanted, sink);
                self.choose(backend, &block, wanted)?;
            }
            self.read(backend, batch, &block, wanted, sink)?;
        }
        if !chosen {
            self.accept(backend, cache);
        }
        self.outcomes(backend, batch, sink)
    }

    /// Brings the rows of a block that the host reads to the host, if there are any.
    fn read(
        &mut self,
        backend: &mut B,
        batch: &Batch<'_>,
        block: &Range<usize>,
        wanted: usize,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        let own = self.own(block, wanted);
        // Rows behind the batch's own rows are padding.
        let rows = own.start..own.end.min(batch.logit_tokens.len());
        let mut hosts = rows.clone().map(|row| batch.choices.is_hosts_row(row));
        if self.chooses && !hosts.any(|hosts| hosts) {
            return Ok(());
        }
        let (vocab, b) = (self.model.vocab_size, &mut self.buffers);
        let logits = match &mut b.whole {
            Some([whole, _]) => {
                backend.set_rows(whole, own.len());
                let owners = Owners {
                    widths: &[vocab],
                    rows: &[0..own.len(); 1],
                };
                backend.gather_to_host(Axis::Alone, whole, owners, &mut b.host_logits)?
            }
            None => {
                let owners = Owners {
                    widths: &self.vocab_widths,
                    rows: &self.owned,
                };
                backend.gather_to_host(self.context.axis, &b.logits, owners, &mut b.host_logits)?
            }
        };
        notes::check(self.notes.is_some(), backend)?;
        if !rows.is_empty() {
            sink.take(LogitBlock {
                first: rows.start,
                rows: rows.len(),
                logits: &logits[..rows.len() * vocab],
                vocab,
            });
        }
        Ok(())
    }

    /// Computes this rank's columns of the logits of all rows. All must be wanted and fit in
    /// one block.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone.
    pub(super) fn head(&mut self, backend: &mut B, size: Size) -> Result<(), BackendError> {
        let rows = size.wanted.all;
        self.cross(backend, size)?;
        self.multiply(backend, 0..rows, rows, false);
        Ok(())
    }

    /// Brings the normed rows whose logits are wanted to all DP ranks, if there are several.
    fn cross(&mut self, backend: &mut B, size: Size) -> Result<(), BackendError> {
        let wide = self.exit() == Exit::HiddenAndLogits;
        let picks = wide && size.wanted.own < size.tokens.own;
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
        backend.all_gather_rows(self.context.axis, own, *first, counts, &mut all.gathered)
    }

    /// Computes this rank's columns of the logits of `block`, which are some of `among` rows.
    fn multiply(&mut self, backend: &mut B, block: Range<usize>, among: usize, wide: bool) {
        let b = &mut self.buffers;
        let head = self.weights.head();
        let (rows, crossed) = match &b.layer.all {
            Some(all) => (&all.gathered, true),
            None => (&b.layer.normed, false),
        };
        backend.set_rows(&mut b.logits, block.len());
        if block.len() == among {
            backend.matmul(rows, Linear::unbiased(head), &mut b.logits);
        } else {
            backend.set_rows(&mut b.head_input, block.len());
            let picks = match wide && !crossed {
                true => Rows::Wanted(&self.inputs, block),
                false => Rows::List(&self.numbers[block]),
            };
            backend.gather_rows(rows, picks, &mut b.head_input);
            backend.matmul(&b.head_input, Linear::unbiased(head), &mut b.logits);
        }
        if let Some(scaling) = scaling(&self.model.multipliers) {
            backend.scale_logits(&mut b.logits, scaling);
        }
    }

    /// Sets the rows of a block that each rank gets: the lead of each DP rank gets the DP
    /// rank's own. Returns the rows that this rank gets, counted among its own wanted rows.
    pub(super) fn own(&mut self, block: &Range<usize>, wanted: usize) -> Range<usize> {
        let inside = |row: usize| row.clamp(block.start, block.end) - block.start;
        for rank in 0..self.owned.len() {
            let rows = match rank % self.shard.topology.attention.size {
                0 => self.rows_of(rank, wanted),
                _ => 0..0,
            };
            self.owned[rank] = inside(rows.start)..inside(rows.end);
        }
        let rank = self.shard.topology.world.rank;
        let (owned, start) = (&self.owned[rank], self.rows_of(rank, wanted).start);
        let first = (block.start + owned.start).saturating_sub(start);
        first..first + owned.len()
    }

    /// Returns the rows of rank `rank`'s DP rank among all `wanted` rows.
    fn rows_of(&self, rank: usize, wanted: usize) -> Range<usize> {
        match &self.world {
            Some(world) => world.wanted.rows[rank].clone(),
            None => 0..wanted,
        }
    }
}
