//! Cache of keys and values in pages.

use std::sync::Arc;

use lockstep_backend::{AttentionShape, KvShape};

use crate::error::CudaError;
use crate::runtime::{Context, Stream};
use crate::tensors::{Element, Floats};

/// Keys and values of all layers, each `[layers, cells, kv_heads, head_dim]`. A page is a run
/// of consecutive cells, one per token.
pub struct PagedCache {
    shape: KvShape,
    keys: Floats,
    values: Floats,
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
            values: Floats::new(context, element, len, "the cache of values")?,
        })
    }

    /// Fills all layers with `keys` and `values`, rounded to the cache's type.
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
        self.values.upload(stream, values)
    }

    /// Downloads keys and values of all layers.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn download(&self, stream: &Stream) -> Result<(Vec<f32>, Vec<f32>), CudaError> {
        Ok((self.keys.download(stream)?, self.values.download(stream)?))
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
    pub(super) fn cells(&self) -> usize {
        self.shape.pages * self.shape.page_size
    }
    /// Device address at which the keys of a layer begin.
    pub(super) fn keys(&self, layer: usize) -> u64 {
        self.keys.address() + self.layer_offset(layer)
    }
    /// Device address at which the values of a layer begin.
    pub(super) fn values(&self, layer: usize) -> u64 {
        self.values.address() + self.layer_offset(layer)
    }
    fn layer_offset(&self, layer: usize) -> u64 {
        let KvShape {
            kv_heads, head_dim, ..
        } = self.shape;
        (layer * self.cells() * kv_heads * head_dim * self.keys.element().bytes()) as u64
    }

    /// # Panics
    /// Panics if the cache has another type, other heads, or no such layer.
    pub(super) fn expect(&self, shape: &AttentionShape, element: Element, layer: usize) {
        let own = &self.shape;
        assert!(
            (own.kv_heads, own.head_dim) == (shape.kv_heads, shape.head_dim)
                && self.keys.element() == element
                && layer < own.layers,
            "layer {layer} of a cache {own:?} is none of {element:?} for heads {shape:?}"
        );
    }
}
