//! Copies from and to the host's memory that a recorded pass may repeat: the device looks
//! at that memory whenever the pass runs.

use bytemuck::Pod;
use cudarc::driver::result;

use super::Stream;
use crate::error::{CudaError, driver};
use crate::memory::{Buffer, Pinned};

impl Stream {
    /// Queues a copy of all of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If there is no room.
    ///
    /// # Safety
    /// `from` is changed only while no pass that copies it is on its way, and is there
    /// for as long as one may be repeated.
    pub(crate) unsafe fn repeat_upload<T: Pod>(
        &self,
        from: &Pinned<T>,
        to: &mut Buffer<T>,
    ) -> Result<(), CudaError> {
        let from = from.as_slice();
        assert!(from.len() <= to.len(), "a copy has room");
        let words = [from.as_ptr() as u64, to.address(), from.len() as u64];
        if !self.tape().note(&words, b"to the device") {
            return Ok(());
        }
        self.context().bind()?;
        // SAFETY: there is room; the caller leaves `from` alone.
        let copies = unsafe { result::memcpy_htod_async(to.address(), from, self.raw()) };
        copies.map_err(driver("cuMemcpyHtoDAsync"))
    }

    /// Queues a copy of all of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If there is no room.
    ///
    /// # Safety
    /// `to` is looked at only while no pass that copies there is on its way, and is there
    /// for as long as one may be repeated.
    pub(crate) unsafe fn repeat_download<T: Pod>(
        &self,
        from: &Buffer<T>,
        to: &mut Pinned<T>,
    ) -> Result<(), CudaError> {
        let to = to.as_mut_slice();
        assert!(from.len() <= to.len(), "a copy has room");
        let to = &mut to[..from.len()];
        let words = [from.address(), to.as_ptr() as u64, to.len() as u64];
        if !self.tape().note(&words, b"to the host") {
            return Ok(());
        }
        self.context().bind()?;
        // SAFETY: there is as much; the caller leaves `to` alone.
        let copies = unsafe { result::memcpy_dtoh_async(to, from.address(), self.raw()) };
        copies.map_err(driver("cuMemcpyDtoHAsync"))
    }
}
