//! A shard's weights on a device, from the checkpoint or from a packed file.

use lockstep_backend::{Backend, MatrixRole};

use super::{WeightOrigin, host::HostModel};
use crate::{
    LoadProgress, ModelError, Weights,
    layer::Layer,
    loader::{Loader, Source},
    packed::{Cache, Restored, Writer},
};

/// All weights of a shard.
pub(super) struct Parts<B: Backend> {
    pub embedding: B::Matrix,
    pub input_norms: Vec<B::Vector>,
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
            let loader = Loader::new(Source::Packed(reader), host.matrices(), progress);
            match parts(loader, backend, host) {
                Ok((parts, _)) => Some(Ok(parts)),
                Err(Restored::Damaged(why)) => Some(Err(why)),
                Err(error) => return Err(error.into()),
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
    let loader = Loader::new(source, host.matrices(), progress);
    match parts(loader, backend, host) {
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
        Err(error) => Err(error.into()),
    }
}

/// Everything, in the order that packed files have; the source again.
///
/// Tables of tokens come first: while a matrix is packed it is in memory
/// twice, which costs nothing extra before the layers are there.
fn parts<'l, B: Backend>(
    mut loader: Loader<'l>,
    backend: &mut B,
    host: &HostModel<'_>,
) -> Result<(Parts<B>, Source<'l>), Restored> {
    let parts = Parts {
        embedding: loader.matrix(backend, &host.embedding, MatrixRole::Vocabulary)?,
        head: host
            .head
            .as_ref()
            .map(|head| loader.matrix(backend, head, MatrixRole::Vocabulary))
            .transpose()?,
        input_norms: host
            .input_norms
            .iter()
            .map(|norm| backend.load_vector(norm))
            .collect::<Result<_, _>>()?,
        layers: host
            .layers
            .iter()
            .map(|layer| loader.layer(backend, layer))
            .collect::<Result<_, _>>()?,
        norm: backend.load_vector(&host.norm)?,
    };
    Ok((parts, loader.finish()))
}
