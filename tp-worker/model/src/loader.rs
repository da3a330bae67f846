//! Brings matrices and layers to a device, from a checkpoint or a packed file.

use lockstep_backend::{Backend, BackendError, MatrixRole};

use crate::{
    LoadPhase, LoadProgress, ModelError, Weights,
    layer::{HostLayer, Layer},
    packed::{Reader, Restored, Writer},
    weights::Taken,
};

/// Loads matrices and counts their bytes.
pub(crate) struct Loader<'l> {
    source: Source<'l>,
    phase: LoadPhase,
    done: u64,
    total: u64,
    progress: &'l mut dyn FnMut(LoadProgress),
    /// A matrix that was read; its memory serves the next one.
    read: Vec<u8>,
}

/// Where matrices come from.
pub(crate) enum Source<'l> {
    /// The model folder. Packed matrices are written as long as that works.
    Checkpoint {
        weights: &'l Weights,
        writer: std::io::Result<Option<Writer>>,
    },
    /// A packed file.
    Packed(Reader),
}

impl<'l> Loader<'l> {
    /// Begins to load `matrices`.
    pub fn new<'h, 'd: 'h>(
        source: Source<'l>,
        matrices: impl Iterator<Item = &'h Taken<'d>>,
        progress: &'l mut dyn FnMut(LoadProgress),
    ) -> Self {
        let mut loader = Self {
            phase: match source {
                Source::Checkpoint { .. } => LoadPhase::Packing,
                Source::Packed(_) => LoadPhase::Restoring,
            },
            source,
            done: 0,
            total: matrices.map(Taken::bytes).sum(),
            progress,
            read: Vec::new(),
        };
        loader.report();
        loader
    }

    /// From the model folder, keeping nothing for the next time.
    pub fn checkpoint<'h, 'd: 'h>(
        weights: &'l Weights,
        matrices: impl Iterator<Item = &'h Taken<'d>>,
        progress: &'l mut dyn FnMut(LoadProgress),
    ) -> Self {
        let writer = Ok(None);
        Self::new(Source::Checkpoint { weights, writer }, matrices, progress)
    }

    /// The source again, behind what was loaded.
    pub fn finish(self) -> Source<'l> {
        self.source
    }

    /// One matrix.
    ///
    /// # Errors
    /// [`Restored`].
    pub fn matrix<B: Backend>(
        &mut self,
        backend: &mut B,
        host: &Taken<'_>,
        role: MatrixRole,
    ) -> Result<B::Matrix, Restored> {
        let matrix = match (&mut self.source, host) {
            (Source::Packed(reader), _) => {
                reader.restore(backend, host.rows(), host.cols(), role)?
            }
            (Source::Checkpoint { .. }, Taken::Random(random)) => {
                backend.random_matrix(random, role)?
            }
            (Source::Checkpoint { weights, writer }, Taken::File(file)) => {
                let read = weights
                    .fetch(file, &mut self.read)
                    .map_err(Restored::Checkpoint)?;
                let matrix = backend.load_matrix(read.as_ref().unwrap_or(file), role)?;
                weights.release(file);
                if let Ok(Some(open)) = writer {
                    let data = backend.matrix_data(&matrix);
                    if let Err(error) = open.add(file.rows(), file.cols, data) {
                        *writer = Err(error);
                    }
                }
                matrix
            }
        };
        self.done += host.bytes();
        self.report();
        Ok(matrix)
    }

    /// One layer; its matrices in the order of [`HostLayer::matrices`].
    ///
    /// # Errors
    /// [`Restored::Device`] when the device refuses it, [`Restored::Damaged`] when
    /// a packed file doesn't have what it should, [`Restored::Checkpoint`] when a
    /// checkpoint can't be read.
    pub fn layer<B: Backend>(
        &mut self,
        backend: &mut B,
        host: &HostLayer<'_>,
    ) -> Result<Layer<B>, Restored> {
        Ok(Layer {
            number: host.number,
            qkv: self.matrix(backend, &host.qkv, MatrixRole::Projection)?,
            qkv_bias: vector(backend, host.qkv_bias.as_ref())?,
            q_norm: vector(backend, host.q_norm.as_ref())?,
            k_norm: vector(backend, host.k_norm.as_ref())?,
            output: self.matrix(backend, &host.output, MatrixRole::Projection)?,
            output_bias: vector(backend, host.output_bias.as_ref())?,
            post_norm: backend.load_vector(&host.post_norm)?,
            gate_up: self.matrix(backend, &host.gate_up, MatrixRole::Projection)?,
            gate_up_bias: vector(backend, host.gate_up_bias.as_ref())?,
            down: self.matrix(backend, &host.down, MatrixRole::Projection)?,
            down_bias: vector(backend, host.down_bias.as_ref())?,
        })
    }

    fn report(&mut self) {
        (self.progress)(LoadProgress {
            phase: self.phase,
            done: self.done,
            total: self.total,
        });
    }
}

impl From<Restored> for ModelError {
    fn from(error: Restored) -> Self {
        match error {
            Restored::Device(error) => error.into(),
            Restored::Checkpoint(error) => error,
            Restored::Damaged(why) => BackendError::Unsupported(why).into(),
        }
    }
}

/// A vector that may be missing.
///
/// # Errors
/// [`BackendError::OutOfMemory`].
pub(crate) fn vector<B: Backend>(
    backend: &mut B,
    values: Option<&Vec<f32>>,
) -> Result<Option<B::Vector>, BackendError> {
    values.map(|v| backend.load_vector(v)).transpose()
}
