//! Memory of the device, and pinned memory of the host, which the device copies by itself.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{DriverError, result};

use crate::error::{CudaError, GPU, HOST};
use crate::runtime::Context;

/// An array on the device. The contents of a new array are unspecified.
///
/// Dropping it waits for the device, so work queued with the array is done by then. The memory of
/// a part of another array stays until that array is dropped, and no other array takes it.
pub struct Buffer<T> {
    context: Arc<Context>,
    address: CUdeviceptr,
    len: usize,
    /// The array that this one is a part of, and that frees the memory.
    whole: Option<Arc<Buffer<u8>>>,
    of: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Allocates `len` elements, at a multiple of 256 bytes; `what` names them in errors.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(context: &Arc<Context>, len: usize, what: &'static str) -> Result<Self, CudaError> {
        context.bind()?;
        let bytes = bytes_of::<T>(len, what, GPU)?;
        // SAFETY: any bits are a `T`. The driver gives no empty arrays.
        let address = unsafe { result::malloc_sync(bytes.max(1)) };
        Ok(Self {
            context: context.clone(),
            address: address.map_err(no_room(what, bytes, GPU))?,
            len,
            whole: None,
            of: PhantomData,
        })
    }
}

impl Buffer<u8> {
    /// Makes an array of the `len` bytes of `memory` from byte `at` on. Parts do not overlap: each
    /// is an array of its own.
    ///
    /// # Panics
    /// Panics if the bytes lie outside of `memory`.
    pub(crate) fn part_of(memory: Arc<Self>, at: usize, len: usize) -> Self {
        let rest = memory.len.checked_sub(at);
        assert!(rest.is_some_and(|rest| len <= rest), "a part lies inside");
        Self {
            context: memory.context.clone(),
            address: memory.address + at as u64,
            len,
            whole: Some(memory),
            of: PhantomData,
        }
    }
}

impl<T> Buffer<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Address on the device, for parameters of kernels.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.whole.is_none() && self.context.bind().is_ok() {
            // SAFETY: it was allocated once, and the driver waits for queued work; nobody is
            // left to be told of a failure.
            let _ = unsafe { result::memory_free(self.address) };
        }
    }
}

/// An array in the host's memory that stays in place, so that copies from and to it run beside
/// the program. A new array is zero. Dropping it waits for no copy.
pub struct Pinned<T> {
    context: Arc<Context>,
    at: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its elements, as a `Vec` does.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// Allocates `len` elements; `what` names them in errors.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(context: &Arc<Context>, len: usize, what: &'static str) -> Result<Self, CudaError> {
        context.bind()?;
        let bytes = bytes_of::<T>(len, what, HOST)?.max(1);
        // SAFETY: ordinary cached memory, in whole pages.
        let at = unsafe { result::malloc_host(bytes, 0) };
        let at = at.map_err(no_room(what, bytes, HOST))?;
        let at = NonNull::new(at.cast::<T>()).ok_or(CudaError::OutOfMemory {
            what,
            bytes,
            place: HOST,
        })?;
        // SAFETY: there are as many bytes, and zeros are a `T`.
        unsafe { at.as_ptr().cast::<u8>().write_bytes(0, bytes) };
        Ok(Self {
            context: context.clone(),
            at,
            len,
        })
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: there are `len` elements, and the caller that queued a copy to them promised
        // to wait for it before it borrows them.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
    /// The elements, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: it was allocated once, and the caller that queued a copy has waited for
            // it; nobody is left to be told of a failure.
            let _ = unsafe { result::free_host(self.at.as_ptr().cast()) };
        }
    }
}

/// Bytes of `len` elements.
///
/// # Errors
/// [`CudaError::OutOfMemory`] for more bytes than any memory has.
fn bytes_of<T>(len: usize, what: &'static str, place: &'static str) -> Result<usize, CudaError> {
    let bytes = len.saturating_mul(size_of::<T>());
    if isize::try_from(bytes).is_err() {
        return Err(CudaError::OutOfMemory { what, bytes, place });
    }
    Ok(bytes)
}

fn no_room(
    what: &'static str,
    bytes: usize,
    place: &'static str,
) -> impl Fn(DriverError) -> CudaError {
    use cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    move |source| match source.0 {
        CUDA_ERROR_OUT_OF_MEMORY => CudaError::OutOfMemory { what, bytes, place },
        _ => CudaError::Driver {
            call: "an allocation",
            source,
        },
    }
}
