//! Caches of a model's layers: one for each group of layers with equal caches, and the states of
//! recurrent layers.

use lockstep_backend::{Backend, BackendError, KvShape, StatesShape};
use lockstep_types::{KvCacheDtype, KvGroup, KvPages, Mixer, ModelConfig};

use super::recurrent::StatePlace;
use crate::Shard;

/// The caches of a model on one rank.
pub struct ModelCache<B: Backend> {
    shapes: Vec<KvShape>,
    caches: Vec<B::KvCache>,
    /// States and records of the recurrent layers of each shape.
    states: Vec<B::States>,
}

/// Place of a layer among the caches of its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CachePlace {
    /// Number of the cache: that of the layer's group among the groups with layers.
    pub cache: usize,
    /// Number of the layer in the cache.
    pub layer: usize,
}

impl CachePlace {
    /// Returns the place of layer `number`, which is in one of `groups`.
    pub fn of(groups: &[KvGroup], number: usize) -> Self {
        let place = |(cache, group): (usize, &KvGroup)| {
            let layer = group.layers.binary_search(&number).ok()?;
            Some(Self { cache, layer })
        };
        let with_layers = groups.iter().filter(|group| !group.layers.is_empty());
        with_layers.enumerate().find_map(place).unwrap_or_default()
    }
}

/// Returns the shapes of the caches that a shard of `model` needs, with `pages` of `page_size`
/// tokens: one for each group with layers. Its batches have cells for `groups` groups: a target's for
/// each of its groups, a draft's for one group, which all of its caches follow.
pub(crate) fn cache_shapes(
    model: &ModelConfig,
    shard: &Shard,
    groups: usize,
    pages: KvPages,
    page_size: usize,
    dtype: KvCacheDtype,
) -> Vec<KvShape> {
    let shape = |(number, group): (usize, KvGroup)| {
        // All layers of a group have as many key/value heads on a rank.
        let first = group
            .layers
            .first()
            .map(|layer| &model.layers[*layer].mixer);
        let (kv_heads, latent) = match first {
            None => (0, None),
            Some(Mixer::Attention(attention)) => (shard.heads(attention).kv.len(), None),
            Some(Mixer::LatentAttention(latent)) => (1, Some(latent.latent)),
            Some(
                Mixer::GatedDelta(_) | Mixer::Mamba2(_) | Mixer::ShortConvolution(_) | Mixer::None,
            ) => (0, None),
        };
        KvShape {
            group: number.min(groups.saturating_sub(1)),
            layers: group.layers.len(),
            kv_heads,
            head_dim: group.spec.head_dim(),
            latent,
            pages: pages.of(group.spec),
            page_size,
            dtype,
        }
    };
    let all = model.kv_groups().into_iter().enumerate();
    let with_layers = all.filter(|(_, group)| !group.layers.is_empty());
    with_layers.map(shape).collect()
}

impl<B: Backend> ModelCache<B> {
    /// Allocates caches of these shapes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub(crate) fn new(backend: &mut B, shapes: Vec<KvShape>) -> Result<Self, BackendError> {
        let caches = shapes.iter().map(|shape| backend.kv_cache(shape));
        Ok(Self {
            caches: caches.collect::<Result<_, _>>()?,
            shapes,
            states: Vec::new(),
        })
    }

    /// Allocates states and records of these shapes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] on devices that have no
    /// recurrent layers.
    pub(crate) fn allocate_states(
        &mut self,
        backend: &mut B,
        shapes: &[StatesShape],
    ) -> Result<(), BackendError> {
        let states = shapes.iter().map(|shape| backend.states(shape));
        self.states = states.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Copies whole states in all recurrent layers, bit for bit: `(from, to)` in turn.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that have no recurrent layers.
    pub fn copy_states(
        &mut self,
        backend: &mut B,
        moves: &[(u32, u32)],
    ) -> Result<(), BackendError> {
        let mut states = self.states.iter_mut();
        states.try_for_each(|states| backend.copy_states(states, moves))
    }

    /// Returns the bits of a state in all recurrent layers, for tests that compare them. Empty on
    /// devices that do not read states back.
    #[cfg(feature = "state-probe")]
    pub fn state_bits(&self, backend: &B, state: u32) -> Vec<u32> {
        let states = self.states.iter();
        states
            .flat_map(|states| backend.state_bits(states, state))
            .collect()
    }

    /// Returns the states of the layers of the shape at `place`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if no states were allocated.
    pub(crate) fn states(&mut self, place: StatePlace) -> Result<&mut B::States, BackendError> {
        let none = "the model has recurrent layers, whose states were not allocated: this is a bug";
        let states = self.states.get_mut(place.states);
        states.ok_or_else(|| BackendError::Unsupported(none.into()))
    }

    /// Returns the bytes of one token in all layers.
    pub fn bytes_per_token(&self) -> usize {
        self.shapes.iter().map(KvShape::bytes_per_token).sum()
    }

    /// Returns the bytes of the caches when they are full.
    pub fn bytes(&self) -> usize {
        let tokens = |shape: &KvShape| shape.pages * shape.page_size;
        let bytes = |shape: &KvShape| shape.bytes_per_token() * tokens(shape);
        self.shapes.iter().map(bytes).sum()
    }

    /// Copies cells of a group, in all layers that follow it, bit for bit: `(from, to)` in turn.
    pub fn copy_cells(&mut self, backend: &mut B, group: usize, moves: &[(u32, u32)]) {
        for (shape, cache) in self.shapes.iter().zip(&mut self.caches) {
            if shape.group == group {
                backend.copy_cells(cache, moves);
            }
        }
    }

    /// Returns all caches.
    pub(crate) fn all(&mut self) -> &mut [B::KvCache] {
        &mut self.caches
    }
}
