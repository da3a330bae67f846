//! The part of an algorithm that runs on the device.

use std::{ops::Range, sync::Arc};

use lockstep_backend::Backend;
use lockstep_model::{CaptureSpec, ModelError, Staged, Tables};
use lockstep_types::{
    drafter::{DrafterCommand, DrafterResult},
    sampling::SamplingParams,
};

use crate::{ChainPass, DraftError, Drafts, PageTable};

/// Proposes tokens for running requests.
///
/// A request is known by its slot. All its tokens but the last have the target's keys and
/// values in place. The drafter keeps its own keys and values under the same page tables, at
/// the positions that the request's rows may write: [`DraftRow::room`] from the last token on.
///
/// Whatever a drafter proposes, the text stays the target's: a bad draft costs time only. The
/// drafter runs on one rank of several, and the others do not wait for it. So all its
/// collectives are on [`lockstep_backend::Axis::Alone`].
pub trait Drafter<B: Backend>: Send {
    /// Returns the features that the target's passes must keep for [`Self::extend`].
    fn capture(&self) -> CaptureSpec {
        CaptureSpec::default()
    }

    /// Returns the bytes of weights, and of keys and values, on the device.
    fn bytes(&self, backend: &B) -> (usize, usize) {
        let _ = backend;
        (0, 0)
    }

    /// Makes the device record the passes that it will repeat, before requests wait for them.
    /// `each` is called with the number of passes that are left.
    ///
    /// # Errors
    /// [`DraftError`], with which the rank ends.
    fn record(
        &mut self,
        device: &mut Device<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), DraftError> {
        let _ = (device, each);
        Ok(())
    }

    /// Begins with a request that was given a slot. `tokens` is the request's text. `cached`
    /// are the positions whose keys and values of the drafter are in the prefix cache.
    ///
    /// The target has its own keys and values up to `cached.end`, always from position 0 on.
    /// The drafter's begin at 0 too, unless the algorithm has a
    /// [`pause_window`](lockstep_types::Algorithm::pause_window). Then `cached` may be empty at
    /// a page's beginning, such as `64..64`: the drafter did not run while the target computed
    /// these 64 positions, and goes on without them.
    fn open(&mut self, slot: usize, tokens: &[u32], cached: Range<usize>) {
        let _ = (slot, tokens, cached);
    }

    /// Ends a slot's request. `tokens` is all its text.
    fn close(&mut self, slot: usize, tokens: &[u32]) {
        let _ = (slot, tokens);
    }

    /// Proposes tokens for `rows`. Their rows of `drafts` are begun in the same order. Each row
    /// gets at most [`DraftRow::most`] nodes, at most [`DraftRow::steps`] deep.
    ///
    /// # Errors
    /// [`DraftError`], with which the rank ends.
    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError>;

    /// Takes note that the target verifies only the first `left` drafts of a slot's chain, and
    /// others behind them, because the request's constraint forbids the rest.
    fn cut(&mut self, slot: usize, left: usize) {
        let _ = (slot, left);
    }

    /// Returns the part that drafts chains or trees on the device, if the drafter has it.
    fn on_device(&mut self) -> Option<&mut dyn DraftsOnDevice<B>> {
        None
    }

    /// Takes in the results of a pass of the target: prompt chunks, and the accepted tokens of
    /// verified rows.
    ///
    /// # Errors
    /// [`DraftError`], with which the rank ends.
    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        let _ = (device, rows);
        Ok(())
    }

    /// Takes note of the rows of a step that drafts nothing, prompts and others. It is called
    /// in place of [`Self::extend`] if the algorithm has a
    /// [`pause_window`](lockstep_types::Algorithm::pause_window). The drafter may leave all
    /// work to the request's next [`Self::extend`], or to the next step that drafts. After that
    /// step, all positions must be taken in of a request that missed no more than the window.
    /// Of a request that missed more, some last positions are enough.
    ///
    /// # Errors
    /// [`DraftError`], with which the rank ends.
    fn pause(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.extend(device, rows)
    }

    /// Forgets all texts. The texts were made up to measure steps, or come from weights that
    /// the target no longer has.
    fn forget(&mut self) {}

    /// Returns the handler of the commands that the algorithm declares; `None` if it declares
    /// none.
    fn commands(&self) -> Option<Arc<dyn CommandHandler>> {
        None
    }
}

/// A drafter whose chains or trees the device can draft. The host does nothing between the copy
/// that brings their batch and the batch's pass. The drafts equal those of [`Drafter::draft`],
/// except that no row stops before its depth.
pub trait DraftsOnDevice<B: Backend> {
    /// Lays out chains or trees for `rows` in `chains`. Pushes one node for each draft to
    /// `drafts`, whose rows are begun. The nodes' tokens are arbitrary, and so are parents in
    /// trees, except that two nodes or more must not form a chain. Returns false if the device
    /// can't draft these rows. Then nothing is laid out, and [`Drafter::draft`] has to draft.
    ///
    /// # Errors
    /// [`DraftError`], with which the rank ends.
    fn lay_out(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
        chains: &mut ChainPass,
    ) -> Result<bool, DraftError>;

    /// Does the work that was left to the first pass of chains, since this step drafts none.
    ///
    /// # Errors
    /// [`DraftError`], with which the rank ends.
    fn settle(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        let _ = device;
        Ok(())
    }

    /// Queues the passes that draft the laid-out `chains`. The staged batch brought these to
    /// the device.
    ///
    /// # Errors
    /// [`ModelError`], with which the rank ends.
    fn run(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        chains: &ChainPass,
    ) -> Result<(), ModelError>;

    /// Takes note of the drafts that the device has made for the laid-out `rows`.
    ///
    /// # Errors
    /// [`DraftError`], with which the rank ends.
    fn drafted(&mut self, rows: &[DraftRow], drafts: &Drafts) -> Result<(), DraftError> {
        let _ = (rows, drafts);
        Ok(())
    }

    /// Makes the device record the passes that [`Self::run`] queues, as [`Drafter::record`]
    /// does.
    ///
    /// # Errors
    /// [`ModelError`], with which the rank ends.
    fn record(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError>;
}

/// Handles commands to a drafter, one at a time, on a thread of its own. A command may take
/// seconds, and steps go on meanwhile.
pub trait CommandHandler: Send + Sync {
    /// Carries a command out.
    ///
    /// # Errors
    /// The reason why nothing changed, for the client who sent the command.
    fn handle(&self, command: DrafterCommand) -> DrafterResult;
}

/// The device of a drafter, with the data that it reads.
pub struct Device<'a, B: Backend> {
    /// The device. [`Drafter`] says which work may run on it.
    pub backend: &'a mut B,
    /// The target's tables of tokens: whole tables for a drafter that captures hidden states,
    /// otherwise only this rank's rows.
    pub tables: Tables<'a, B>,
    /// Features that the target's last pass kept, `[tokens of the pass, capture width]`.
    pub features: Option<&'a B::Tensor>,
    /// Rows of [`Self::features`]. [`ExtendRow::features`] is a range of this list.
    pub feature_rows: &'a [u32],
    /// Page tables of the requests.
    pub pages: PageTable<'a>,
    /// The requests by slot.
    pub requests: &'a dyn Requests,
}

/// Data of requests that drafters may read.
pub trait Requests {
    /// Returns the tokens of prompt and output, including the token sampled last.
    fn tokens(&self, slot: usize) -> &[u32];
    /// Returns the number of prompt tokens: the start of the output.
    fn prompt_len(&self, slot: usize) -> usize;
    /// Returns the parameters by which the request's tokens are chosen.
    fn sampling(&self, slot: usize) -> &SamplingParams;
}

/// A request that wants drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftRow {
    /// The request's slot.
    pub slot: usize,
    /// Start of the request's row of [`Device::pages`].
    pub pages_start: u32,
    /// Number of positions with the target's keys and values: one less than the request's
    /// tokens.
    pub kv_len: usize,
    /// Number of draft steps, at most [`Self::most`]; 0 asks for no drafts.
    pub steps: usize,
    /// Number of branches per node.
    pub topk: usize,
    /// Most nodes. With the last known token, they fit [`Self::room`].
    pub most: usize,
    /// Number of positions that may be written from `kv_len` on.
    pub room: usize,
    /// True if the drafter may stop before that, if it expects little from going on. It may
    /// decide also by what it has drafted so far.
    pub may_stop: bool,
}

/// Results of a pass of the target for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendRow {
    /// The request's slot.
    pub slot: usize,
    /// Start of the request's row of [`Device::pages`].
    pub pages_start: u32,
    /// First position whose keys and values are new.
    pub start: usize,
    /// Range of [`Device::feature_rows`] with the row of features of each new position.
    pub features: Range<usize>,
    /// True if only one token is known after the last new position, the token sampled for it.
    /// The request drafts next.
    pub ends: bool,
}

impl ExtendRow {
    /// Returns the position after the last new one.
    pub fn end(&self) -> usize {
        self.start + self.features.len()
    }
}
