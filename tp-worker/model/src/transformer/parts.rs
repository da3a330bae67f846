//! A shard's weights on a device, from the checkpoint or from a packed file.

use lockstep_backend::{Backend, BackendError, HostMatrix, MatrixRole};

use super::{
    Layer, LoadPhase, LoadProgress, WeightOrigin,
    host::{HostLayer, HostModel},
};
use crate::{
    ModelError, Weights,
    packed::{Cache, Reader, Restored, Writer},
};

/// All weights of a shard.
pub(super) struct Parts<B: Backend> {
    pub embedding: B::Matrix,
    pub layers: Vec<Layer<B>>,
    pub norm: B::Vector,
    pub head: Option<B::Matrix>,
}

/// Reads the packed file if there is a good one; otherwise packs the
/// checkpoint, and leaves the result for the next time.
///
/// # Errors
/// [`ModelError::Backend`].
pub(super) fn load<B: Backend>(
    backend: &mut B,
    weights: &Weights,
    host: &HostModel<'_>,
    cache: Option<&Cache>,
    origin: &mut WeightOrigin,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Parts<B>, ModelError> {
    let file = cache.map(Cache::path);
    let named = |what: &str, why: String| match &file {
        Some(file) => format!("{} {what}: {why}", file.display()),
        None => why,
    };
    let reader = cache.map_or(Ok(None), Cache::reader);
    let restored = match reader {
        Ok(None) => None,
        Ok(Some(reader)) => {
            let loader = Loader::new(Source::Packed(reader), host, progress);
            match loader.parts(backend, host) {
                Ok((parts, _)) => Some(Ok(parts)),
                Err(Restored::Damaged(why)) => Some(Err(why)),
                Err(Restored::Device(error)) => return Err(error.into()),
            }
        }
        Err(why) => Some(Err(why)),
    };
    match restored {
        Some(Ok(parts)) => {
            (origin.file, origin.restored) = (file, true);
            return Ok(parts);
        }
        Some(Err(why)) => {
            let what = "is not used and packed anew";
            origin.warnings.push(named(what, why));
        }
        None => {}
    }
    let writer = cache.map(Cache::writer).transpose();
    let source = Source::Checkpoint { weights, writer };
    weights.read_ahead();
    match Loader::new(source, host, progress).parts(backend, host) {
        Ok((parts, Source::Checkpoint { writer, .. })) => {
            let unchanged = cache.is_none_or(|cache| cache.still_describes(weights));
            let finish = |writer: Writer| match unchanged {
                true => writer.finish(),
                false => Err(std::io::Error::other(
                    "the checkpoint changed while it was packed; start again to serve it as it is now",
                )),
            };
            match writer.and_then(|writer| writer.map(finish).transpose()) {
                Ok(written) => origin.file = written.and(file),
                Err(error) => origin
                    .warnings
                    .push(named("is not written", error.to_string())),
            }
            Ok(parts)
        }
        Ok((parts, Source::Packed(_))) => Ok(parts),
        Err(Restored::Device(error)) => Err(error.into()),
        Err(Restored::Damaged(why)) => Err(BackendError::Unsupported(why).into()),
    }
}

/// Where matrices come from.
enum Source<'l> {
    /// The model folder. Packed matrices are written as long as that works.
    Checkpoint {
        weights: &'l Weights,
        writer: std::io::Result<Option<Writer>>,
    },
    /// A packed file.
    Packed(Reader),
}

/// Loads matrices and counts their bytes.
struct Loader<'l> {
    source: Source<'l>,
    phase: LoadPhase,
    done: u64,
    total: u64,
    progress: &'l mut dyn FnMut(LoadProgress),
}

impl<'l> Loader<'l> {
    fn new(
        source: Source<'l>,
        host: &HostModel<'_>,
        progress: &'l mut dyn FnMut(LoadProgress),
    ) -> Self {
        let mut loader = Self {
            phase: match source {
                Source::Checkpoint { .. } => LoadPhase::Packing,
                Source::Packed(_) => LoadPhase::Restoring,
            },
            source,
            done: 0,
            total: host.matrices().map(bytes).sum(),
            progress,
        };
        loader.report();
        loader
    }

    /// Everything, in the order that packed files have; the source again.
    ///
    /// Tables of tokens come first: while a matrix is packed it is in memory
    /// twice, which costs nothing extra before the layers are there.
    fn parts<B: Backend>(
        mut self,
        backend: &mut B,
        host: &HostModel<'_>,
    ) -> Result<(Parts<B>, Source<'l>), Restored> {
        let parts = Parts {
            embedding: self.matrix(backend, &host.embedding, MatrixRole::Vocabulary)?,
            head: host
                .head
                .as_ref()
                .map(|head| self.matrix(backend, head, MatrixRole::Vocabulary))
                .transpose()?,
            layers: host
                .layers
                .iter()
                .map(|layer| self.layer(backend, layer))
                .collect::<Result<_, _>>()?,
            norm: backend.load_vector(&host.norm)?,
        };
        Ok((parts, self.source))
    }

    fn report(&mut self) {
        (self.progress)(LoadProgress {
            phase: self.phase,
            done: self.done,
            total: self.total,
        });
    }

    fn matrix<B: Backend>(
        &mut self,
        backend: &mut B,
        host: &HostMatrix<'_>,
        role: MatrixRole,
    ) -> Result<B::Matrix, Restored> {
        let matrix = match &mut self.source {
            Source::Packed(reader) => reader.restore(backend, host.rows(), host.cols, role)?,
            Source::Checkpoint { weights, writer } => {
                let matrix = backend.load_matrix(host, role)?;
                weights.release(host);
                if let Ok(Some(open)) = writer {
                    let data = backend.matrix_data(&matrix);
                    if let Err(error) = open.add(host.rows(), host.cols, data) {
                        *writer = Err(error);
                    }
                }
                matrix
            }
        };
        self.done += bytes(host);
        self.report();
        Ok(matrix)
    }

    fn layer<B: Backend>(
        &mut self,
        backend: &mut B,
        host: &HostLayer<'_>,
    ) -> Result<Layer<B>, Restored> {
        fn vector<B: Backend>(
            backend: &mut B,
            values: Option<&Vec<f32>>,
        ) -> Result<Option<B::Vector>, BackendError> {
            values.map(|v| backend.load_vector(v)).transpose()
        }
        Ok(Layer {
            input_norm: backend.load_vector(&host.input_norm)?,
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
}

/// Size on the host of the part a rank takes.
fn bytes(matrix: &HostMatrix<'_>) -> u64 {
    (matrix.rows() * matrix.cols * matrix.dtype.bytes()) as u64
}
