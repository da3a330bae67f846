//! Text through layers that draft in turn.

use lockstep_backend::{Backend, Batch};

use super::{EagleHead, HiddenSource};
use crate::{ModelCache, ModelError, Tables, runner::limits::fits};

impl<B: Backend> EagleHead<B> {
    /// Runs several layers over text, one after the other, with the target's hidden states fed
    /// since the last pass. Each of `batch.rows` belongs to one of `slots`, in order, and
    /// `batch.logit_tokens` are the last tokens of the rows.
    ///
    /// A layer keeps its output for the last token of a row as the slot's root, and the next text
    /// of the slot goes on from that. Where `begins` is true for a row, the slot's roots are not
    /// those of the position before: it is the first position of a text, or the outputs before it
    /// were computed for another request. In the place of the output of the layer before, the row's
    /// first token then has the target's own hidden state, which that output foretells.
    ///
    /// # Errors
    /// Before anything ran: [`ModelError::TooLarge`] when the batch exceeds the limits or has not
    /// as many rows as slots, [`ModelError::HiddenInputs`] when fewer or more hidden states were
    /// fed than there are tokens, [`ModelError::NoHiddenState`] for a slot that the head has no
    /// root for. [`ModelError::Backend`] when the device fails; then texts have to begin anew.
    pub fn take_in_turn(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        batch: &Batch<'_>,
        (slots, begins): (&[u32], &[bool]),
    ) -> Result<(), ModelError> {
        self.check_roots(batch.logit_tokens.len(), slots)?;
        fits(
            "rows of text",
            batch.rows.len(),
            slots.len().min(begins.len()),
        )?;
        let tokens = self.begin(backend, batch)?;
        if tokens == 0 {
            return Ok(());
        }
        let last = self.layers() - 1;
        for turn in 0..last {
            (self.turn, self.outputs) = (turn, 0);
            self.buffers.set_rows(backend, tokens);
            self.run_whole(backend, cache, tables, batch)?;
            self.outputs = tokens;
            self.feed_text(backend, batch, (slots, begins))?;
            let b = &mut self.buffers;
            let (outputs, roots) = (&b.layer.residual, &mut b.roots[turn]);
            backend.copy_rows(outputs, batch.logit_tokens, roots, slots);
        }
        // Nobody reads outputs of the last layer over text, only its keys and values.
        (self.turn, self.outputs) = (last, 0);
        self.buffers.set_rows(backend, tokens);
        backend.stage(batch, &mut self.inputs)?;
        self.attend(backend, cache, tables)?;
        self.turn = 0;
        Ok(())
    }

    /// Makes hidden inputs for the next layer of what the present one has left: each token follows
    /// the output of the token before.
    fn feed_text(
        &mut self,
        backend: &mut B,
        batch: &Batch<'_>,
        (slots, begins): (&[u32], &[bool]),
    ) -> Result<(), ModelError> {
        let mut sources = std::mem::take(&mut self.sources);
        sources.clear();
        for ((row, slot), begins) in batch.rows.iter().zip(slots).zip(begins) {
            sources.push(match begins {
                true => HiddenSource::Input(row.start),
                false => HiddenSource::Root(*slot),
            });
            let others = row.start..(row.start + row.q_len).saturating_sub(1);
            sources.extend(others.map(HiddenSource::Output));
        }
        let fed = self.feed_from(backend, self.turn, &sources);
        self.sources = sources;
        fed
    }
}
