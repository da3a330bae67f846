//! Algorithms by name.

use std::{collections::BTreeMap, sync::Arc};

use lockstep_adaptive::{Policies, PolicyFactory};
use lockstep_backend::Backend;
use lockstep_model::{FileAccess, ForwardLimits, LoadProgress};
use lockstep_types::{
    Algorithm, Algorithms, DraftModel, KvCacheDtype, ModelConfig, SpeculationConfig, Verification,
};

use crate::{DraftError, Drafter, choose::Chooser};

/// The parts that a drafter is built from.
pub struct Build<'a, B: Backend> {
    /// The device. A drafter is whole on its rank: its weights and passes are on
    /// [`lockstep_backend::Axis::Alone`].
    pub backend: &'a mut B,
    /// The configuration.
    pub speculation: &'a SpeculationConfig,
    /// The target.
    pub target: &'a ModelConfig,
    /// Number of slots.
    pub requests: usize,
    /// Sizes of the largest pass.
    pub limits: ForwardLimits,
    /// Number of pages of the cache.
    pub pages: usize,
    /// Number of tokens of a page.
    pub page_size: usize,
    /// Type of cached keys and values.
    pub kv_dtype: KvCacheDtype,
    /// The way in which files of weights are read.
    pub files: FileAccess,
    /// Callback while weights load.
    pub progress: &'a mut dyn FnMut(LoadProgress),
}

impl<'a, B: Backend> Build<'a, B> {
    /// Returns the chooser of drafted tokens.
    pub(crate) fn chooser(&self) -> Chooser {
        let sampled = self.speculation.verification != Verification::Target;
        Chooser::new(self.target.vocab_size, sampled)
    }

    /// Returns the draft model of the configuration.
    ///
    /// # Errors
    /// [`DraftError::Config`] if the configuration names none.
    pub fn draft(&self) -> Result<&'a DraftModel, DraftError> {
        let speculation: &'a SpeculationConfig = self.speculation;
        speculation
            .draft
            .as_ref()
            .ok_or_else(|| DraftError::Config {
                algorithm: speculation.algorithm.clone().unwrap_or_default(),
                reason: "it drafts with a model; name one with --speculative-draft-model-path"
                    .into(),
            })
    }
}

/// An algorithm that can draft on devices of `B`.
pub trait DrafterFactory<B: Backend>: Algorithm {
    /// Loads weights and allocates buffers: everything that a step needs.
    ///
    /// # Errors
    /// [`DraftError`] if the files can't be used, or for want of memory.
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError>;
}

/// A program's algorithms for devices of `B`, by name, and its policies of adaptive depth.
pub struct DrafterRegistry<B: Backend> {
    known: BTreeMap<String, Arc<dyn DrafterFactory<B>>>,
    policies: Policies,
}

impl<B: Backend> DrafterRegistry<B> {
    /// Makes a registry without algorithms, with the policies that every program has.
    pub fn empty() -> Self {
        Self {
            known: BTreeMap::new(),
            policies: Policies::builtin(),
        }
    }

    /// Adds an algorithm under its name. It takes the place of an earlier one of that name.
    #[must_use]
    pub fn with(mut self, algorithm: impl DrafterFactory<B> + 'static) -> Self {
        self.add(Arc::new(algorithm));
        self
    }

    /// Adds an algorithm as [`Self::with`] does, if other registries have it too.
    pub fn add(&mut self, algorithm: Arc<dyn DrafterFactory<B>>) {
        let name = algorithm.name().to_ascii_uppercase();
        self.known.insert(name, algorithm);
    }

    /// Adds a policy under its name. It takes the place of an earlier one of that name.
    pub fn add_policy(&mut self, policy: Arc<dyn PolicyFactory>) {
        self.policies.add(policy);
    }

    /// Returns the policies by which the depth may adapt.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Makes a registry with the same names. `f` makes the new value for each algorithm.
    pub(crate) fn map<D: DrafterFactory<B> + 'static>(
        &self,
        f: impl Fn(Arc<dyn DrafterFactory<B>>) -> Arc<D>,
    ) -> Self {
        let known = self.known.iter();
        let known = known.map(
            |(name, algorithm)| -> (String, Arc<dyn DrafterFactory<B>>) {
                (name.clone(), f(algorithm.clone()))
            },
        );
        Self {
            known: known.collect(),
            policies: self.policies.clone(),
        }
    }

    /// Returns the algorithms in the form that configuration reads.
    pub fn algorithms(&self) -> Algorithms {
        let mut algorithms = Algorithms::with_policies(self.policies.clone());
        for known in self.known.values() {
            algorithms.add(known.clone());
        }
        algorithms
    }

    /// Builds the configured drafter; `None` without speculation.
    ///
    /// # Errors
    /// [`DraftError::Unknown`], and the errors of [`DrafterFactory::build`].
    pub fn build(&self, build: Build<'_, B>) -> Result<Option<Box<dyn Drafter<B>>>, DraftError> {
        let Some(name) = &build.speculation.algorithm else {
            return Ok(None);
        };
        let algorithm = self
            .known
            .get(&name.to_ascii_uppercase())
            .ok_or_else(|| DraftError::Unknown(name.clone()))?;
        algorithm.build(build).map(Some)
    }
}

impl<B: Backend> Clone for DrafterRegistry<B> {
    fn clone(&self) -> Self {
        Self {
            known: self.known.clone(),
            policies: self.policies.clone(),
        }
    }
}
