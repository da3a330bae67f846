//! Adapters on a device.

use crate::{AdaptedLinear, BackendError, HostMatrix, Ops};

/// Remedy of devices without adapters.
const NO_ADAPTERS: &str = "this device runs no adapters; serve with --device cpu";

/// Operations of adapters. A device without them takes the defaults, which refuse.
pub trait Adapt: Ops {
    /// Checks that devices of this kind run adapters.
    ///
    /// # Errors
    /// The reason why they don't, for people.
    fn serves_adapters() -> Result<(), &'static str> {
        Err(NO_ADAPTERS)
    }
    /// Replaces the values of `matrix` by those of `with`, of the same shape, where they lie.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that run no adapters.
    fn replace_matrix(
        &mut self,
        matrix: &mut Self::Matrix,
        with: &HostMatrix<'_>,
    ) -> Result<(), BackendError> {
        let _ = (matrix, with);
        Err(BackendError::Unsupported(NO_ADAPTERS.into()))
    }
    /// `out[i]` = place of the adapter of token `i`'s row ([`crate::Batch::adapters`]), or
    /// [`crate::NO_ADAPTER`]. `out` is `[n, 1]`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that run no adapters.
    fn adapter_places(
        &mut self,
        inputs: &Self::Inputs,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (inputs, out);
        Err(BackendError::Unsupported(NO_ADAPTERS.into()))
    }
    /// `out[i] += up · (scale · (down · x[i]))` in each part of a projection, with the adapter at
    /// place `places[i]`. `x` is `[n, in]`, `places` `[n, 1]`, `out` `[n, out]`.
    ///
    /// Rows without an adapter, and parts that it leaves as they are, keep their bits. `down · x`
    /// is multiplied by the scale in f32, and is then the input of a product like any other. A
    /// row's bits depend neither on other rows nor on other adapters.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that run no adapters;
    /// [`BackendError::OutOfMemory`] for working memory.
    fn add_adapters(
        &mut self,
        x: &Self::Tensor,
        adapters: &AdaptedLinear<Self::Matrix>,
        places: &Self::Tensor,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let _ = (x, adapters, places, out);
        Err(BackendError::Unsupported(NO_ADAPTERS.into()))
    }
}
