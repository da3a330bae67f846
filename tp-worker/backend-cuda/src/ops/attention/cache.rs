//! Cache of keys and values in pages.

use std::sync::Arc;

use lockstep_backend::{AttentionShape, KvShape};

use crate::error::CudaError;
use crate::passes::Inputs;
use crate::runtime::{Context, Stream};
use crate::tensors::{Element, Floats};

/// Keys and values of the layers of a group, each `[layers, cells, kv_heads, head_dim]`. A page
/// is a run of consecutive cells, one per token. A cache of latents has keys alone, whose first
/// columns are the values.
pub struct PagedCache {
    shape: KvShape,
    keys: Floats,
    /// `None` where a key is the value, too.
    values: Option<Floats>,
}

impl PagedCache {
    /// Allocates all pages. Their contents are unspecified.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Unsupported`] for 8-bit integers.
    pub fn new(context: &Arc<Context>, shape: &KvShape) -> Result<Self, CudaError> {
        let element = Element::cached(shape.dtype)?;
        // A product that overflows is refused like a size that memory does not have.
        let sizes = [
            shape.layers,
            shape.pages,
            shape.page_size,
            shape.kv_heads,
            shape.head_dim,
        ];
        let len = sizes.into_iter().fold(1, usize::saturating_mul);
        Ok(Self {
            shape: *shape,
            keys: Floats::new(context, element, len, "the cache of keys")?,
            values: match shape.latent {
                None => Some(Floats::new(context, element, len, "the cache of values")?),
                Some(_) => None,
            },
        })
    }

    /// Fills all layers with `keys` and `values`, rounded to the cache's type. A cache of latents
    /// takes `keys` alone.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if the number of keys or values is not the cache's.
    pub fn upload(
        &mut self,
        stream: &Stream,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), CudaError> {
        self.keys.upload(stream, keys)?;
        match &mut self.values {
            Some(own) => own.upload(stream, values),
            None => Ok(()),
        }
    }

    /// Downloads keys and values of all layers; of latents, no values.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn download(&self, stream: &Stream) -> Result<(Vec<f32>, Vec<f32>), CudaError> {
        let values = match &self.values {
            Some(values) => values.download(stream)?,
            None => Vec::new(),
        };
        Ok((self.keys.download(stream)?, values))
    }

    /// Shape of the cache: layers, pages, heads and type.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }
    /// Element type of keys and values.
    pub fn element(&self) -> Element {
        self.keys.element()
    }

    pub(super) fn layers(&self) -> usize {
        self.shape.layers
    }
    pub(super) fn page_size(&self) -> usize {
        self.shape.page_size
    }
    pub(in crate::ops) fn cells(&self) -> usize {
        self.shape.pages * self.shape.page_size
    }
    /// Device address at which the keys of a layer begin.
    pub(in crate::ops) fn keys(&self, layer: usize) -> u64 {
        self.keys.address() + self.layer_offset(layer)
    }
    /// Device address at which the values of a layer begin; of latents, that of the keys.
    pub(super) fn values(&self, layer: usize) -> u64 {
        let values = self.values.as_ref().unwrap_or(&self.keys);
        values.address() + self.layer_offset(layer)
    }
    fn layer_offset(&self, layer: usize) -> u64 {
        let KvShape {
            kv_heads, head_dim, ..
        } = self.shape;
        (layer * self.cells() * kv_heads * head_dim * self.keys.element().bytes()) as u64
    }

    /// Number of the cache's group of layers, of those that `inputs` have cells for.
    ///
    /// # Panics
    /// Panics if `inputs` have no cells for the group.
    pub(in crate::ops) fn group_in(&self, inputs: &Inputs) -> u32 {
        let (group, groups) = (self.shape.group, inputs.limits().groups);
        assert!(
            group < groups,
            "a batch for {groups} groups does not fit a cache of group {group}"
        );
        group as u32
    }

    /// # Panics
    /// Panics if the cache has another type, other heads, or no such layer.
    pub(in crate::ops) fn expect(&self, shape: &AttentionShape, element: Element, layer: usize) {
        let own = &self.shape;
        assert!(
            (own.kv_heads, own.head_dim, own.latent)
                == (shape.kv_heads, shape.head_dim, shape.latent)
                && self.keys.element() == element
                && layer < own.layers,
            "layer {layer} of a cache {own:?} is none of {element:?} for heads {shape:?}"
        );
    }
}
