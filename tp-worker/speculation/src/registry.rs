//! Algorithms by name.

use std::{collections::BTreeMap, sync::Arc};

use lockstep_adaptive::{Policies, PolicyFactory};
use lockstep_backend::Backend;
use lockstep_model::{FileAccess, ForwardLimits, LoadProgress};
use lockstep_types::{
    Algorithm, Algorithms, DraftModel, KvCacheDtype, ModelConfig, SpeculationConfig, Verification,
};

use crate::{DraftError, Drafter, choose::Chooser};

/// What a drafter is built for.
pub struct Build<'a, B: Backend> {
    /// The device. A drafter is whole on its rank: what it loads and runs is on
    /// [`lockstep_backend::Axis::Alone`].
    pub backend: &'a mut B,
    /// The configuration.
    pub speculation: &'a SpeculationConfig,
    /// The target.
    pub target: &'a ModelConfig,
    /// Slots.
    pub requests: usize,
    /// The largest pass.
    pub limits: ForwardLimits,
    /// Pages of the cache.
    pub pages: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Type of keys and values.
    pub kv_dtype: KvCacheDtype,
    /// How weights' files are looked at.
    pub files: FileAccess,
    /// Called while weights load.
    pub progress: &'a mut dyn FnMut(LoadProgress),
}

impl<'a, B: Backend> Build<'a, B> {
    /// How drafted tokens are chosen.
    pub(crate) fn chooser(&self) -> Chooser {
        let sampled = self.speculation.verification != Verification::Target;
        Chooser::new(self.target.vocab_size, sampled)
    }

    /// What the configuration says is drafted with.
    ///
    /// # Errors
    /// [`DraftError::Config`] when it names nothing.
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
    /// Loads weights and allocates buffers; everything a step needs.
    ///
    /// # Errors
    /// [`DraftError`]: what is wrong with the files or the memory.
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError>;
}

/// The algorithms of a program that can draft on devices of `B`, by name, and
/// the policies by which their depth may adapt.
pub struct DrafterRegistry<B: Backend> {
    known: BTreeMap<String, Arc<dyn DrafterFactory<B>>>,
    policies: Policies,
}

impl<B: Backend> DrafterRegistry<B> {
    /// No algorithm; the policies that everybody has.
    pub fn empty() -> Self {
        Self {
            known: BTreeMap::new(),
            policies: Policies::builtin(),
        }
    }

    /// Adds an algorithm under its name; a later one of the same name takes the
    /// earlier one's place.
    #[must_use]
    pub fn with(mut self, algorithm: impl DrafterFactory<B> + 'static) -> Self {
        self.add(Arc::new(algorithm));
        self
    }

    /// [`Self::with`] for an algorithm that other registries know too.
    pub fn add(&mut self, algorithm: Arc<dyn DrafterFactory<B>>) {
        let name = algorithm.name().to_ascii_uppercase();
        self.known.insert(name, algorithm);
    }

    /// Adds a policy under its name; a later one of the same name takes the
    /// earlier one's place.
    pub fn add_policy(&mut self, policy: Arc<dyn PolicyFactory>) {
        self.policies.add(policy);
    }

    /// By what the depth may adapt.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The same names for what `f` makes of each.
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

    /// As configuration sees them.
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
    /// [`DraftError::Unknown`], and what [`DrafterFactory::build`] gives.
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
