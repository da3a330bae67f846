//! What the device drafts, between the step's batch and its pass.

use lockstep_backend::{Backend, DraftShape};
use lockstep_model::{ModelError, Staged, Transformer};
use lockstep_speculation::{ChainPass, Drafts, DraftsChains, depth};
use lockstep_types::Verification;

use super::{DraftStage, OfTarget};
use crate::worker::{
    WorkerError, choices,
    outcome::Outcomes,
    slots::{RowTask, Slots},
};

/// What a pass needs of the step's drafts.
pub struct ForPass<'a, B: Backend> {
    /// See [`DraftStage::drafts`].
    pub drafts: (&'a Drafts, &'a Drafts),
    /// `None` where the drafts are known, or another rank's device makes them.
    pub chains: Option<OnDevice<'a, B>>,
    /// See [`lockstep_backend::Batch::told`].
    pub told: Option<DraftShape>,
}

/// Chains that the device drafts.
pub struct OnDevice<'a, B: Backend> {
    drafter: &'a mut dyn DraftsChains<B>,
    of_target: &'a OfTarget<B>,
    pub chains: &'a ChainPass,
    /// Which of the rows that sample each of them drafts for.
    pub requests: &'a [u32],
}

impl<B: Backend> OnDevice<'_, B> {
    /// Queues what drafts them, behind a batch that is `staged`, by the device's clock.
    ///
    /// # Errors
    /// [`ModelError::Backend`].
    pub fn run(&mut self, backend: &mut B, staged: Staged<'_, B>) -> Result<(), ModelError> {
        let staged = self.of_target.whole(staged);
        if let Some(device) = backend.drafter() {
            device.start_clock();
        }
        self.drafter.run(backend, staged, self.chains)?;
        if let Some(device) = backend.drafter() {
            device.stop_clock();
        }
        Ok(())
    }
}

impl<B: Backend> DraftStage<B> {
    /// Whether the device of the rank that leads may draft with such a configuration: the
    /// likeliest tokens, which devices verify themselves. Other ranks that verify the same
    /// ones learn them from it in time.
    pub(super) fn may_draft_on_device(&self, target: &Transformer<B>) -> bool {
        let reaches = target.shard().topology.attention.size == 1 || target.tells_drafts();
        reaches && target.chooses() && self.config.verification == Verification::Target
    }

    /// Whether this rank has what drafts on its device.
    pub fn drafts_on_device(&mut self) -> bool {
        let drafter = self.drafter.as_mut();
        let can = drafter.is_some_and(|drafter| drafter.on_device().is_some());
        can && self.config.verification == Verification::Target
    }

    /// Whether the device may draft for the rows that decode: it is to choose their
    /// tokens, for the host could not before it knows the drafts.
    pub(super) fn are_choosable(
        &self,
        target: &Transformer<B>,
        slots: &Slots,
        tasks: &[RowTask],
    ) -> bool {
        let mut decodes = tasks.iter().filter(|task| task.decodes);
        self.may_draft_on_device(target)
            && decodes.all(|task| task.sample && choices::is_devices(slots.get(task.slot)))
    }

    /// Notes which rows of the batch, as it is laid out, the device drafts for.
    pub fn address(&mut self, tasks: &[RowTask]) {
        self.chain_requests.clear();
        if self.on_device.is_none() {
            return;
        }
        // Of the decode rows, in their order.
        let decodes = tasks.iter().filter(|task| task.decodes);
        self.choices.clear();
        self.choices.extend(decodes.map(|task| task.choice as u32));
        let choice = |row: usize| self.choices[row];
        self.chain_requests.extend(self.chains.rows().map(choice));
    }

    /// Whether another rank's device drafts of the step's.
    pub fn are_told(&self) -> bool {
        self.on_device.is_some() && self.drafter.is_none()
    }

    /// What the step's pass needs.
    pub fn for_pass(&mut self) -> ForPass<'_, B> {
        let Self {
            drafter,
            of_target,
            drafts,
            none,
            chains,
            chain_requests,
            on_device,
            ..
        } = self;
        let told = on_device.filter(|_| drafter.is_none());
        let drafter = drafter
            .as_deref_mut()
            .filter(|_| on_device.is_some() && !chain_requests.is_empty());
        ForPass {
            drafts: (drafts, none),
            told,
            chains: drafter
                .and_then(|drafter| drafter.on_device())
                .map(|drafter| OnDevice {
                    drafter,
                    of_target,
                    chains,
                    requests: chain_requests,
                }),
        }
    }

    /// Takes note of what the device has drafted, which came with the outcomes, and how
    /// deep. Whether it has drafted.
    ///
    /// # Errors
    /// [`WorkerError::Draft`] where the drafter finds fault with it.
    pub fn know(
        &mut self,
        tasks: &mut [RowTask],
        outcomes: &Outcomes,
    ) -> Result<bool, WorkerError> {
        if self.on_device.is_none() {
            return Ok(false);
        }
        for task in tasks {
            if let Some(row) = task.drafts {
                let (tokens, parents) = outcomes.drafted(task.choice);
                self.drafts.set_nodes(row, tokens, parents);
                task.draft_depth = depth(self.drafts.nodes(row));
            }
        }
        if let Some(on_device) = self
            .drafter
            .as_mut()
            .and_then(|drafter| drafter.on_device())
        {
            on_device.drafted(&self.rows, &self.drafts)?;
        }
        self.word();
        Ok(true)
    }
}
