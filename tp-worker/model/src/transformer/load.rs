//! From files to a transformer on a device.

use std::path::Path;

use lockstep_backend::Backend;
use lockstep_types::ModelConfig;

use super::{Buffers, LoadProgress, Transformer, WeightOrigin, host::HostModel, parts};
use crate::{ForwardLimits, ModelError, Shard, Weights, layer::Geometry, packed::Cache};

impl<B: Backend> Transformer<B> {
    /// Opens `model.path`, checks every tensor this rank needs, packs its part
    /// and allocates the buffers. `progress` is called after each matrix.
    ///
    /// # Errors
    /// [`ModelError`]: what is wrong with the files, the split or the memory.
    pub fn load(
        backend: &mut B,
        model: &ModelConfig,
        limits: ForwardLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        Self::load_cached(backend, model, limits, None, progress)
    }

    /// [`Self::load`], but matrices that were packed before, from a checkpoint
    /// with the same content, are read from the folder `cache` as they are;
    /// otherwise they are left there for the next time. What goes wrong with
    /// the folder is in [`Self::weight_origin`] and no error.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_cached(
        backend: &mut B,
        model: &ModelConfig,
        limits: ForwardLimits,
        cache: Option<&Path>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let (rank, size) = backend.group();
        let shard = Shard::new(model, rank, size)?;
        let weights = Weights::open(&model.path)?;
        let host = HostModel::describe(&weights, model, &shard)?;
        let mut origin = WeightOrigin::default();
        let cache = cache.and_then(|folder| {
            match Cache::open(folder, backend, model, &shard, &weights, progress) {
                Ok((cache, warning)) => {
                    origin.warnings.extend(warning.map(|why| {
                        format!("{} is read at every start: {why}", model.path.display())
                    }));
                    Some(cache)
                }
                Err(why) => {
                    let folder = folder.display();
                    origin
                        .warnings
                        .push(format!("no packed weights are kept in {folder}: {why}"));
                    None
                }
            }
        });
        let parts = parts::load(
            backend,
            &weights,
            &host,
            cache.as_ref(),
            &mut origin,
            progress,
        )?;
        let limits = limits.sensible();
        Ok(Self {
            embedding: parts.embedding,
            input_norms: parts.input_norms,
            layers: parts.layers,
            norm: parts.norm,
            head: parts.head,
            vocab_widths: shard.vocab_widths(model),
            geometry: Geometry::new(model, &shard, limits.positions),
            buffers: Buffers::new(backend, model, &shard, limits)?,
            model: model.clone(),
            shard,
            limits,
            capture: None,
            origin,
        })
    }
}
