//! Drafts that the device makes, between the step's batch and its pass.

use lockstep_backend::{Backend, DraftShape};
use lockstep_model::{ModelError, Staged, Transformer};
use lockstep_speculation::{ChainPass, Drafts, DraftsOnDevice, depth};
use lockstep_types::Verification;

use super::{DraftStage, TargetTables};
use crate::worker::{
    WorkerError, choices,
    outcome::Outcomes,
    slots::{RowTask, Slots},
};

/// The step's drafts in the form that a pass needs.
pub struct PassDrafts<'a, B: Backend> {
    /// The drafts that [`DraftStage::drafts`] returns.
    pub drafts: (&'a Drafts, &'a Drafts),
    /// The chains to draft; `None` if the drafts are known, or if another rank's device makes
    /// them.
    pub chains: Option<DeviceDrafts<'a, B>>,
    /// Shape of the drafts that arrive during the pass: see [`lockstep_backend::Batch::told`].
    pub told: Option<DraftShape>,
}

/// Chains that this rank's device drafts.
pub struct DeviceDrafts<'a, B: Backend> {
    drafter: &'a mut dyn DraftsOnDevice<B>,
    of_target: &'a TargetTables<B>,
    pub chains: &'a ChainPass,
    /// For each chain, the index of its row among the rows that sample.
    pub requests: &'a [u32],
}

impl<B: Backend> DeviceDrafts<'_, B> {
    /// Queues the passes that draft the chains behind a `staged` batch, with the device's clock
    /// around them.
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
    /// Returns true if the lead's device may draft with this configuration: the drafts are the
    /// likeliest tokens, which devices verify themselves. The other ranks of the DP rank must
    /// get the drafts from the lead's device in time.
    pub(super) fn may_draft_on_device(&self, target: &Transformer<B>) -> bool {
        let reaches = target.shard().topology.attention.size == 1 || target.tells_drafts();
        reaches && target.chooses() && self.config.verification == Verification::Target
    }

    /// Returns true if this rank's drafter can draft on its device.
    pub fn drafts_on_device(&mut self) -> bool {
        let drafter = self.drafter.as_mut();
        let can = drafter.is_some_and(|drafter| drafter.on_device().is_some());
        can && self.config.verification == Verification::Target
    }

    /// Returns true if the device may draft for the rows that decode. The device must choose
    /// their tokens, because the host cannot choose before it knows the drafts.
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

    /// Notes for which rows of the laid-out batch the device drafts.
    pub fn address(&mut self, tasks: &[RowTask]) {
        self.chain_requests.clear();
        if self.on_device.is_none() {
            return;
        }
        // Choices of the decode rows, in the order of these rows.
        let decodes = tasks.iter().filter(|task| task.decodes);
        self.choices.clear();
        self.choices.extend(decodes.map(|task| task.choice as u32));
        let choice = |row: usize| self.choices[row];
        self.chain_requests.extend(self.chains.rows().map(choice));
    }

    /// Returns true if another rank's device drafts for this step.
    pub fn are_told(&self) -> bool {
        self.on_device.is_some() && self.drafter.is_none()
    }

    /// Returns the drafts in the form that the step's pass needs.
    pub fn for_pass(&mut self) -> PassDrafts<'_, B> {
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
        PassDrafts {
            drafts: (drafts, none),
            told,
            chains: drafter
                .and_then(|drafter| drafter.on_device())
                .map(|drafter| DeviceDrafts {
                    drafter,
                    of_target,
                    chains,
                    requests: chain_requests,
                }),
        }
    }

    /// Takes in the device's drafts, which came with the outcomes, and their depths. Returns
    /// true if the device has drafted.
    ///
    /// # Errors
    /// [`WorkerError::Draft`] if the drafter rejects the drafts.
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
