//! Buffers: allocated on a device, or only counted in bytes.

use lockstep_backend::{Backend, BackendError, DeviceMemory, Holds, InputLimits};

/// A maker of buffers: a device, or a [`Counter`] of their bytes. Each list of buffers is
/// written once, where the buffers are allocated. Counting runs the same code and allocates
/// nothing.
pub(crate) trait Allocate {
    /// Activations on the device; `()` if they are only counted.
    type Tensor;

    /// Allocates activations `[rows, width]`.
    fn activations(
        &mut self,
        rows: usize,
        width: usize,
        holds: Holds,
    ) -> Result<Self::Tensor, BackendError>;

    /// Reserves room for `elements` floats on the host.
    fn host(&mut self, elements: usize, what: &'static str) -> Result<Vec<f32>, BackendError>;
}

impl<B: Backend> Allocate for B {
    type Tensor = B::Tensor;

    fn activations(
        &mut self,
        rows: usize,
        width: usize,
        holds: Holds,
    ) -> Result<B::Tensor, BackendError> {
        self.tensor(rows, width, holds)
    }

    fn host(&mut self, elements: usize, what: &'static str) -> Result<Vec<f32>, BackendError> {
        let mut room = Vec::new();
        let no_room = |_| BackendError::OutOfMemory {
            what,
            bytes: elements.saturating_mul(size_of::<f32>()),
        };
        room.try_reserve_exact(elements).map_err(no_room)?;
        Ok(room)
    }
}

/// Adds up the bytes of buffers and allocates none.
pub(crate) struct Counter<'d> {
    pub device: &'d dyn DeviceMemory,
    pub activations: u64,
    pub host: u64,
}

impl<'d> Counter<'d> {
    pub fn new(device: &'d dyn DeviceMemory) -> Self {
        Self {
            device,
            activations: 0,
            host: 0,
        }
    }

    /// Counts room for batches within `limits`.
    pub fn inputs(&mut self, limits: &InputLimits) {
        let bytes = self.device.inputs_bytes(limits);
        self.activations = self.activations.saturating_add(bytes);
    }

    /// Counts room for `rows` rows of `width` floats on the host.
    pub fn host_rows(&mut self, rows: usize, width: usize) {
        let bytes = (rows as u64).saturating_mul(4 * width as u64);
        self.host = self.host.saturating_add(bytes);
    }
}

impl Allocate for Counter<'_> {
    type Tensor = ();

    fn activations(&mut self, rows: usize, width: usize, holds: Holds) -> Result<(), BackendError> {
        let bytes = self.device.tensor_bytes(rows, width, holds);
        self.activations = self.activations.saturating_add(bytes);
        Ok(())
    }

    fn host(&mut self, elements: usize, _: &'static str) -> Result<Vec<f32>, BackendError> {
        self.host_rows(elements, 1);
        Ok(Vec::new())
    }
}
