//! Algorithms by name.

use std::{collections::BTreeMap, sync::Arc};

use lockstep_backend::{Backend, KvDType};
use lockstep_model::{ForwardLimits, LoadProgress};
use lockstep_types::{
    Algorithm, Algorithms, DraftModel, ModelConfig, SpeculationConfig, Verification,
};

use crate::{DraftError, Drafter, choose::Chooser};

/// What a drafter is built for.
pub struct Build<'a, B: Backend> {
    /// The device, solo.
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
    pub kv_dtype: KvDType,
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

/// An algorithm with its device's side.
pub trait Drafting<B: Backend>: Algorithm {
    /// Loads weights and allocates buffers; everything a step needs.
    ///
    /// # Errors
    /// [`DraftError`]: what is wrong with the files or the memory.
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError>;
}

/// The algorithms of a program.
pub struct Registry<B: Backend> {
    known: BTreeMap<String, Arc<dyn Drafting<B>>>,
}

impl<B: Backend> Registry<B> {
    /// No algorithm.
    pub fn empty() -> Self {
        Self {
            known: BTreeMap::new(),
        }
    }

    /// Adds an algorithm under its name; a later one of the same name takes the
    /// earlier one's place.
    #[must_use]
    pub fn with(mut self, algorithm: impl Drafting<B> + 'static) -> Self {
        let name = algorithm.name().to_ascii_uppercase();
        self.known.insert(name, Arc::new(algorithm));
        self
    }

    /// The same names for what `f` makes of each.
    pub(crate) fn map<D: Drafting<B> + 'static>(
        &self,
        f: impl Fn(Arc<dyn Drafting<B>>) -> Arc<D>,
    ) -> Self {
        let known = self.known.iter();
        let known = known.map(|(name, algorithm)| -> (String, Arc<dyn Drafting<B>>) {
            (name.clone(), f(algorithm.clone()))
        });
        Self {
            known: known.collect(),
        }
    }

    /// As configuration sees them.
    pub fn algorithms(&self) -> Algorithms {
        let mut algorithms = Algorithms::default();
        for known in self.known.values() {
            algorithms.add(known.clone());
        }
        algorithms
    }

    /// Builds the configured drafter; `None` without speculation.
    ///
    /// # Errors
    /// [`DraftError::Unknown`], and what [`Drafting::build`] gives.
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

impl<B: Backend> Clone for Registry<B> {
    fn clone(&self) -> Self {
        Self {
            known: self.known.clone(),
        }
    }
}
