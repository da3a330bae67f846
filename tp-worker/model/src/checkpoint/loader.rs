//! Brings tensors to a device, from a checkpoint or a packed file.

use lockstep_backend::{Backend, BackendError};

use crate::{
    LoadPhase, LoadProgress, ModelError,
    blocks::parts::{Convert, Tensors},
    checkpoint::packed::{Reader, Restored, Writer},
    checkpoint::{
        found::{Found, FoundMatrix, matrix_bytes},
        source::Source,
    },
};

/// Loads matrices and counts their bytes.
pub(crate) struct Loader<'l> {
    from: LoadFrom<'l>,
    phase: LoadPhase,
    done: u64,
    total: u64,
    progress: &'l mut dyn FnMut(LoadProgress),
    /// Bytes of the last matrix that was read. The memory is reused for the next one.
    read: Vec<u8>,
}

/// Place that a loader's matrices come from.
pub(crate) enum LoadFrom<'l> {
    /// The model's own tensors. Packed matrices are also written to a file, until a write
    /// fails.
    Checkpoint {
        source: &'l dyn Source,
        writer: std::io::Result<Option<Writer>>,
    },
    /// A packed file.
    Packed(Reader),
}

impl<'l> Loader<'l> {
    /// Creates a loader for `tensors` and reports that none is loaded yet.
    pub fn new<'d>(
        from: LoadFrom<'l>,
        tensors: &impl Tensors<Found<'d>>,
        progress: &'l mut dyn FnMut(LoadProgress),
    ) -> Self {
        let mut loader = Self {
            phase: match from {
                LoadFrom::Checkpoint { .. } => LoadPhase::Packing,
                LoadFrom::Packed(_) => LoadPhase::Restoring,
            },
            from,
            done: 0,
            total: matrix_bytes(tensors),
            progress,
            read: Vec::new(),
        };
        loader.report();
        loader
    }

    /// Creates a loader that reads the model's own tensors and writes no packed file.
    pub fn checkpoint<'d>(
        source: &'l dyn Source,
        tensors: &impl Tensors<Found<'d>>,
        progress: &'l mut dyn FnMut(LoadProgress),
    ) -> Self {
        let writer = Ok(None);
        Self::new(LoadFrom::Checkpoint { source, writer }, tensors, progress)
    }

    /// Returns the place that matrices came from, advanced past the loaded ones.
    pub fn finish(self) -> LoadFrom<'l> {
        self.from
    }

    /// Loads `tensors`, in their order.
    ///
    /// # Errors
    /// [`Restored::Device`] when the device refuses a tensor, [`Restored::Damaged`] when a
    /// packed file lacks a matrix or holds a wrong one, [`Restored::Checkpoint`] when a
    /// checkpoint can't be read.
    pub fn load<'d, B: Backend, T: Tensors<Found<'d>>>(
        &mut self,
        backend: &mut B,
        tensors: &T,
    ) -> Result<T::In<B>, Restored> {
        tensors.convert(&mut Load {
            loader: self,
            backend,
        })
    }

    fn matrix<B: Backend>(
        &mut self,
        backend: &mut B,
        FoundMatrix { taken, format }: &FoundMatrix<'_>,
    ) -> Result<B::Matrix, Restored> {
        let matrix = match &mut self.from {
            LoadFrom::Packed(reader) => {
                reader.restore(backend, taken.rows(), taken.cols(), *format)?
            }
            LoadFrom::Checkpoint { source, writer } => {
                let read = source
                    .fetch(taken, &mut self.read)
                    .map_err(Restored::Checkpoint)?;
                let read = read.as_ref().unwrap_or(taken);
                let matrix = backend.load_matrix(read, *format)?;
                // Behind the packing, which brought the codes into memory on all threads.
                if let Some(tensor) = read.wrong_tensor() {
                    return Err(Restored::Checkpoint(ModelError::NotNumber {
                        file: source.file_of(tensor),
                        tensor: tensor.to_owned(),
                    }));
                }
                source.release(taken);
                if let Ok(Some(open)) = writer {
                    let data = backend.matrix_data(&matrix);
                    if let Err(error) = open.add(taken.rows(), taken.cols(), data) {
                        *writer = Err(error);
                    }
                }
                matrix
            }
        };
        self.done += taken.bytes();
        self.report();
        Ok(matrix)
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

/// Conversion that brings tensors of a checkpoint to a device.
struct Load<'x, 'l, B> {
    loader: &'x mut Loader<'l>,
    backend: &'x mut B,
}

impl<'d, B: Backend> Convert<Found<'d>> for Load<'_, '_, B> {
    type To = B;
    type Error = Restored;

    fn matrix(&mut self, found: &FoundMatrix<'d>) -> Result<B::Matrix, Restored> {
        self.loader.matrix(self.backend, found)
    }

    fn vector(&mut self, values: &Vec<f32>) -> Result<B::Vector, Restored> {
        Ok(self.backend.load_vector(values)?)
    }
}
