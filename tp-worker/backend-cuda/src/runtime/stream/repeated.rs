//! Copies from and to the host's memory that a recorded pass may repeat: the device uses the
//! memory's contents at the time of each repetition. And copies of what stays, which no pass
//! repeats.

use bytemuck::Pod;
use cudarc::driver::result;

use super::Stream;
use crate::error::{CudaError, driver};
use crate::runtime::{Buffer, Pinned};

impl Stream {
    /// Queues a copy of all of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `to` is shorter than `from`.
    ///
    /// # Safety
    /// `from` is changed only while no pass that copies it is on its way. It lives as long as
    /// such a pass may be repeated.
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
    /// Panics if `to` is shorter than `from`.
    ///
    /// # Safety
    /// `to` is read only while no pass that copies to it is on its way. It lives as long as
    /// such a pass may be repeated.
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

    /// Copies `from` to the beginning of `to`, and waits, also where work is rehearsed, or runs
    /// before it is recorded: a repetition finds the values, since nothing writes `to` again.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; [`CudaError::Unsupported`] while a graph is recorded.
    ///
    /// # Panics
    /// Panics if `to` is shorter than `from`.
    pub(crate) fn upload_to_stay<T: Pod>(
        &self,
        from: &[T],
        to: &mut Buffer<T>,
    ) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "a copy has room");
        if self.tape.records() {
            self.refuse_while_recorded()?;
        }
        self.context.bind()?;
        // SAFETY: there is room, and `from` lives until the copy is done.
        let copies = unsafe { result::memcpy_htod_async(to.address(), from, self.raw()) };
        copies.map_err(driver("cuMemcpyHtoDAsync"))?;
        self.synchronize()
    }
}
