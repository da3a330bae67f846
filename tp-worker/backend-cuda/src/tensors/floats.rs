//! Arrays of floats whose type is known when the program runs.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use lockstep_backend::Holds;
use lockstep_types::{Dtype, KvCacheDtype};

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Staged, Stream};

/// A type of floats on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// Element type of weights and operands of `dtype`.
    pub fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Float32 => Self::F32,
            Dtype::Bfloat16 => Self::Bf16,
        }
    }
    /// The inverse of [`Self::of`].
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::Float32,
            Self::Bf16 => Dtype::Bfloat16,
        }
    }
    /// Element type of a cache of `dtype`.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for 8-bit integers.
    pub fn cached(dtype: KvCacheDtype) -> Result<Self, CudaError> {
        match dtype {
            KvCacheDtype::Float32 => Ok(Self::F32),
            KvCacheDtype::Bfloat16 => Ok(Self::Bf16),
            KvCacheDtype::Int8 => Err(CudaError::Unsupported(
                "keys and values in 8-bit integers are not served on GPUs: give --kv-cache-dtype bfloat16, or run on the CPU"
                    .to_owned(),
            )),
        }
    }
    /// Element type of a tensor that `holds` such values, where `self` is the operands' type.
    pub fn holding(self, holds: Holds) -> Self {
        match holds {
            Holds::Sum | Holds::Logits => Self::F32,
            Holds::Operand => self,
        }
    }
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
    /// Name of the type in kernels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::Bf16 => "bf16",
        }
    }
}

/// An array of floats on the device: weights, activations, keys or values. The contents of a
/// new array are unspecified.
pub struct Floats {
    bytes: Buffer<u8>,
    element: Element,
    len: usize,
}

impl Floats {
    /// Allocates `len` floats; `what` names them in errors.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(
        context: &Arc<Context>,
        element: Element,
        len: usize,
        what: &'static str,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            bytes: Buffer::new(context, len.saturating_mul(element.bytes()), what)?,
            element,
            len,
        })
    }

    /// Makes an array of `len` floats in `bytes`.
    ///
    /// # Panics
    /// Panics if they do not fill it.
    pub(crate) fn in_bytes(bytes: Buffer<u8>, element: Element, len: usize) -> Self {
        assert!(
            bytes.len() == len * element.bytes(),
            "floats fill their memory"
        );
        Self {
            bytes,
            element,
            len,
        }
    }

    /// Type of the elements.
    pub fn element(&self) -> Element {
        self.element
    }
    /// Number of floats.
    pub fn len(&self) -> usize {
        self.len
    }
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    pub(crate) fn address(&self) -> u64 {
        self.bytes.address()
    }

    /// Writes `values`, rounded to the nearest of the type, and waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if the number of values is not the array's.
    pub fn upload(&mut self, stream: &Stream, values: &[f32]) -> Result<(), CudaError> {
        assert!(values.len() == self.len, "as many values as there is room");
        match self.element {
            Element::F32 => stream.upload(bytemuck::cast_slice(values), &mut self.bytes),
            Element::Bf16 => {
                let rounded: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
                stream.upload(bytemuck::cast_slice(&rounded), &mut self.bytes)
            }
        }
    }

    /// Waits for the work queued before, and returns all values.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn download(&self, stream: &Stream) -> Result<Vec<f32>, CudaError> {
        let mut values = vec![0f32; self.len];
        match self.element {
            Element::F32 => {
                stream.download(&self.bytes, bytemuck::cast_slice_mut(&mut values))?;
            }
            Element::Bf16 => {
                let mut rounded = vec![bf16::ZERO; self.len];
                stream.download(&self.bytes, bytemuck::cast_slice_mut(&mut rounded))?;
                for (value, rounded) in values.iter_mut().zip(rounded) {
                    *value = rounded.to_f32();
                }
            }
        }
        Ok(values)
    }

    /// Waits for the work queued before, and reads the first values into `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if the array's type is not a 32-bit float, or it has fewer floats than `to`.
    pub fn download_to(&self, stream: &Stream, to: &mut [f32]) -> Result<(), CudaError> {
        self.expect(Element::F32, to.len(), "what is brought to the host");
        stream.download(&self.bytes, bytemuck::cast_slice_mut(to))
    }

    /// Waits for the work queued before, and copies the bytes from byte `at` on to `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there are fewer bytes than in `to`.
    pub(crate) fn download_bytes(
        &self,
        stream: &Stream,
        at: usize,
        to: &mut [u8],
    ) -> Result<(), CudaError> {
        stream.download_from(&self.bytes, at, to)
    }

    /// Queues a copy of bytes `part` of `from` to this array, from byte `at` on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if the bytes don't fit.
    pub(crate) fn receive(
        &mut self,
        stream: &Stream,
        from: &mut Staged<u8>,
        part: Range<usize>,
        at: usize,
    ) -> Result<(), CudaError> {
        from.send(stream, part, &mut self.bytes, at)
    }

    /// The array's memory.
    pub(crate) fn memory(&mut self) -> &mut Buffer<u8> {
        &mut self.bytes
    }

    /// Sets all bytes to `byte`; 255 makes NaNs.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn fill(&mut self, stream: &Stream, byte: u8) -> Result<(), CudaError> {
        stream.fill(&mut self.bytes, byte)
    }

    /// # Panics
    /// Panics if the array has another type, or fewer than `len` floats.
    pub(crate) fn expect(&self, element: Element, len: usize, what: &str) {
        let (has, room) = (self.element, self.len);
        assert!(
            has == element && room >= len,
            "{what}: {room} floats of type {has:?}, where {len} of type {element:?} are needed"
        );
    }
}
