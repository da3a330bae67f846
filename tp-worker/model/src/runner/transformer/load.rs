//! Loading of a transformer from files to a device.

use std::path::Path;

use lockstep_backend::{Axis, Backend, NoteShape};
use lockstep_types::{AdapterLimits, LoadFormat, ModelConfig};

use super::{Adapters, Buffers, Tail, Transformer, WeightOrigin, adapters, notes, restore};
use crate::{
    FileAccess, ForwardLimits, LoadProgress, ModelError, Shard, Topology,
    blocks::LayerContext,
    checkpoint::{
        found::locate,
        packed::{self, Cache},
        source,
    },
    models::{adapters::Adaptable, decoder::Decoder},
    split::crossing::Crossings,
};

/// Options for loading a model.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions<'a> {
    /// The ranks that the model is split over. All of them load it.
    pub axis: Axis,
    /// Groups of ranks that experts are split over by number, see [`Topology`]; 1 splits each
    /// expert over all ranks.
    pub ep_size: usize,
    /// Limits of the largest pass.
    pub limits: ForwardLimits,
    /// A folder of packed matrices. Matrices that were packed before, from a checkpoint with
    /// the same content, are read from it as they are. Otherwise the packed matrices are left
    /// there for the next start. Problems with the folder are in
    /// [`Transformer::weight_origin`] and are no error. A backend whose matrices can't be
    /// kept does not use the folder, nor does a model without a checkpoint.
    pub cache: Option<&'a Path>,
    /// Way to access the checkpoint's files.
    pub files: FileAccess,
    /// Shape of the notes that ranks exchange as each pass begins, if their devices can
    /// exchange notes: see [`Transformer::notes`].
    pub notes: Option<NoteShape>,
    /// Limits of adapters, for which room is made.
    pub adapters: AdapterLimits,
}

impl LoadOptions<'_> {
    /// Options for loading over the ranks of `axis`, from the checkpoint.
    pub fn new(axis: Axis, limits: ForwardLimits) -> Self {
        Self {
            axis,
            ep_size: 1,
            limits,
            cache: None,
            files: FileAccess::Mapped,
            notes: None,
            adapters: AdapterLimits::default(),
        }
    }
}

impl<B: Backend> Transformer<B> {
    /// Opens `model.path`, checks every tensor that this rank needs, packs its part, and
    /// allocates the buffers. `progress` is called after each matrix.
    ///
    /// # Errors
    /// [`ModelError`] names the problem with the files, the split or the memory.
    pub fn load(
        backend: &mut B,
        model: &ModelConfig,
        options: LoadOptions<'_>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let (axis, limits, cache) = (options.axis, options.limits, options.cache);
        let topology = Topology::of(backend, axis).with_experts(options.ep_size);
        let shard = Shard::new(model, topology)?;
        let source = source::open(model, options.files)?;
        let source = source.as_ref();
        let mut listed = Decoder::listed(model, &shard);
        let found = locate(source, &listed, model)?;
        let mut origin = WeightOrigin::default();
        let cache = cache.filter(|_| model.load_format == LoadFormat::Auto);
        let cache = cache.zip(packed::forms(backend, model));
        let cache = cache.and_then(|(folder, forms)| {
            match Cache::open(folder, &forms, &listed, topology, source, progress) {
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
        let loaded = restore::load(
            backend,
            source,
            &found,
            cache.as_ref(),
            &mut origin,
            progress,
        )?;
        let room = adapters::allocate(backend, &Adaptable::of(&mut listed), options.adapters)?;
        let limits = limits.sensible().of_device(backend.sampler().is_some());
        let mut loaded = Self {
            weights: loaded,
            vocab_widths: shard.vocab_widths(model),
            context: LayerContext::new(backend, axis, model, limits.positions)?,
            numbers: (0..limits.wanted_rows(topology.dp_size()) as u32).collect(),
            owned: vec![0..0; topology.world.size],
            chooses: limits.max_commit > 0,
            cut: false,
            tells_drafts: false,
            world: (topology.dp_size() > 1).then(|| Crossings::new(topology)),
            buffers: Buffers::new(backend, model, &shard, limits, options.adapters)?,
            inputs: backend.inputs(&limits.inputs())?,
            tail: Tail::new(backend, model, &shard, &limits)?,
            passes: B::Passes::default(),
            notes: notes::prepare(backend, options.notes)?,
            model: model.clone(),
            shard,
            limits,
            adapters: Adapters::new(options.adapters),
            capture: None,
            origin,
        };
        loaded.context.adapters = room;
        loaded.passes = loaded.fresh_passes(backend);
        Ok(loaded)
    }
}
