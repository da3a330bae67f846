//! The device's side of an algorithm.

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
/// A request is known by its slot; all its tokens but the last have the target's
/// keys and values in place. The drafter keeps its own
/// keys and values under the same page tables, at the positions that the
/// request's rows may write: [`DraftRow::room`] from the last token on.
///
/// Whatever a drafter proposes, the text stays the target's: a bad draft costs
/// time only. It is on one rank of several, whose peers do not wait: all its
/// collectives are on [`lockstep_backend::Axis::Alone`].
pub trait Drafter<B: Backend>: Send {
    /// What the target's passes must keep for [`Self::extend`].
    fn capture(&self) -> CaptureSpec {
        CaptureSpec::default()
    }

    /// Bytes of weights and of keys and values on the device.
    fn bytes(&self, backend: &B) -> (usize, usize) {
        let _ = backend;
        (0, 0)
    }

    /// Has the device record the passes that it will repeat, before requests wait for
    /// them; `each` hears how many of them are left.
    ///
    /// # Errors
    /// [`DraftError`]; the rank ends with it.
    fn record(
        &mut self,
        device: &mut Device<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), DraftError> {
        let _ = (device, each);
        Ok(())
    }

    /// Begins with a request that was given a slot: `tokens` is its text, and `cached` are
    /// the positions with the drafter's keys and values from the prefix cache.
    ///
    /// The target has its own up to `cached.end`, always from position 0 on. The drafter's
    /// begin at 0 too, unless the algorithm has a
    /// [`pause_window`](lockstep_types::Algorithm::pause_window). Then `cached` may be
    /// empty at a page's beginning, such as `64..64`: nobody drafted while the target
    /// computed these 64 positions, and the drafter goes on without them.
    fn open(&mut self, slot: usize, tokens: &[u32], cached: Range<usize>) {
        let _ = (slot, tokens, cached);
    }

    /// A slot's request is gone; `tokens` is all its text.
    fn close(&mut self, slot: usize, tokens: &[u32]) {
        let _ = (slot, tokens);
    }

    /// Proposes tokens for `rows`, whose rows of `drafts` are begun in the same
    /// order: at most [`DraftRow::steps`] deep and [`DraftRow::most`] nodes each.
    ///
    /// # Errors
    /// [`DraftError`]; the rank ends with it.
    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError>;

    /// Who drafts chains or trees on the device, where it can.
    fn on_device(&mut self) -> Option<&mut dyn DraftsChains<B>> {
        None
    }

    /// Takes in what a pass of the target brought: prompt chunks, and the
    /// accepted tokens of verified rows.
    ///
    /// # Errors
    /// [`DraftError`]; the rank ends with it.
    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        let _ = (device, rows);
        Ok(())
    }

    /// Takes note of the rows of a step that drafts nothing, prompts and others.
    /// Called in place of [`Self::extend`] where the algorithm has a
    /// [`pause_window`](lockstep_types::Algorithm::pause_window), and may leave
    /// everything to the next [`Self::extend`] of the request or the next step
    /// that drafts. By the end of that, the positions of a request that missed no more
    /// than the window have to be taken in; of one that missed more, any last ones.
    ///
    /// # Errors
    /// [`DraftError`]; the rank ends with it.
    fn pause(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.extend(device, rows)
    }

    /// Forgets all texts: those so far were made up, to measure steps with, or are of
    /// weights that the target has no more.
    fn forget(&mut self) {}

    /// What handles the commands that its algorithm declares; `None` where it
    /// declares none.
    fn commands(&self) -> Option<Arc<dyn CommandHandler>> {
        None
    }
}

/// A drafter whose chains or trees the device can draft: from the copy that brings the batch in
/// which they are verified, to that batch's pass, no host comes between. What is drafted
/// is what [`Drafter::draft`] drafts, but that no row stops before its depth.
pub trait DraftsChains<B: Backend> {
    /// Lays chains or trees out in `chains` for `rows`, and pushes as many nodes to `drafts`,
    /// whose rows are begun, as there will be drafts; their tokens are any, and so is what
    /// nodes of trees follow, but that two nodes are never a chain. `false` where the device can't
    /// draft these, and [`Drafter::draft`] is to do so: then nothing was laid out.
    ///
    /// # Errors
    /// [`DraftError`]; the rank ends with it.
    fn lay_out(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
        chains: &mut ChainPass,
    ) -> Result<bool, DraftError>;

    /// No chains are drafted in this step: does now what was left to their first pass.
    ///
    /// # Errors
    /// [`DraftError`]; the rank ends with it.
    fn settle(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        let _ = device;
        Ok(())
    }

    /// Queues what drafts the `chains` that were laid out, which the staged batch brought
    /// to the device.
    ///
    /// # Errors
    /// [`ModelError`]; the rank ends with it.
    fn run(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        chains: &ChainPass,
    ) -> Result<(), ModelError>;

    /// Takes note of what the device has drafted for `rows`, those that were laid out.
    ///
    /// # Errors
    /// [`DraftError`]; the rank ends with it.
    fn drafted(&mut self, rows: &[DraftRow], drafts: &Drafts) -> Result<(), DraftError> {
        let _ = (rows, drafts);
        Ok(())
    }

    /// As [`Drafter::record`], of what [`Self::run`] queues.
    ///
    /// # Errors
    /// [`ModelError`]; the rank ends with it.
    fn record(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError>;
}

/// Handles commands to a drafter, one at a time and on a thread of its own: a
/// command may take seconds, and steps go on meanwhile.
pub trait CommandHandler: Send + Sync {
    /// Carries a command out.
    ///
    /// # Errors
    /// Why nothing changed, for the client who sent it.
    fn handle(&self, command: DrafterCommand) -> DrafterResult;
}

/// What a drafter computes on.
pub struct Device<'a, B: Backend> {
    /// The device; see [`Drafter`] for what may run on it.
    pub backend: &'a mut B,
    /// The target's tables of tokens: whole for a drafter that captures hidden
    /// states, otherwise this rank's rows alone.
    pub tables: Tables<'a, B>,
    /// What the target's last pass kept, `[tokens of the pass, capture width]`.
    pub features: Option<&'a B::Tensor>,
    /// Rows of [`Self::features`], which [`ExtendRow::features`] points into.
    pub feature_rows: &'a [u32],
    /// Where requests keep keys and values.
    pub pages: PageTable<'a>,
    /// The requests by slot.
    pub requests: &'a dyn Requests,
}

/// What drafters may know of requests.
pub trait Requests {
    /// Prompt and output, whatever was sampled last included.
    fn tokens(&self, slot: usize) -> &[u32];
    /// Where the output begins.
    fn prompt_len(&self, slot: usize) -> usize;
    /// How its tokens are chosen.
    fn sampling(&self, slot: usize) -> &SamplingParams;
}

/// A request that wants drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftRow {
    /// Its slot.
    pub slot: usize,
    /// Where its row of [`Device::pages`] begins.
    pub pages_start: u32,
    /// Positions with the target's keys and values: one less than its tokens.
    pub kv_len: usize,
    /// Draft steps, at most [`Self::most`]; 0 asks for nothing.
    pub steps: usize,
    /// Branches per node.
    pub topk: usize,
    /// Nodes at the most. With the last known token, they fit [`Self::room`].
    pub most: usize,
    /// Positions that may be written from `kv_len` on.
    pub room: usize,
    /// The drafter may stop before that, also by what it has drafted so far,
    /// where it thinks little of going on.
    pub may_stop: bool,
}

/// What a pass of the target brought one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendRow {
    /// Its slot.
    pub slot: usize,
    /// Where its row of [`Device::pages`] begins.
    pub pages_start: u32,
    /// First position whose keys and values are new.
    pub start: usize,
    /// For each new position in turn, where [`Device::feature_rows`] names its
    /// row of features.
    pub features: Range<usize>,
    /// Nothing more is known behind the last new position but the token that
    /// was sampled for it: the request drafts next.
    pub ends: bool,
}

impl ExtendRow {
    /// Behind the last position that is new.
    pub fn end(&self) -> usize {
        self.start + self.features.len()
    }
}
