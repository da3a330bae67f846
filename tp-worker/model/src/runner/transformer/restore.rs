//! A shard's weights on a device, from the checkpoint or from a packed file.

use lockstep_backend::Backend;

use super::WeightOrigin;
use crate::{
    LoadProgress, ModelError,
    checkpoint::found::Found,
    checkpoint::loader::{LoadFrom, Loader},
    checkpoint::packed::{Cache, Restored, Writer},
    checkpoint::source::Source,
    models::decoder::Decoder,
};

/// Reads the packed file if there is a good one. Otherwise packs the checkpoint, and leaves
/// the packed file for the next start.
///
/// # Errors
/// [`ModelError::Backend`].
pub(super) fn load<B: Backend>(
    backend: &mut B,
    source: &dyn Source,
    found: &Decoder<Found<'_>>,
    cache: Option<&Cache>,
    origin: &mut WeightOrigin,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Decoder<B>, ModelError> {
    let file = cache.map(Cache::path);
    let named = |what: &str, why: String| match &file {
        Some(file) => format!("{} {what}: {why}", file.display()),
        None => why,
    };
    let reader = cache.map_or(Ok(None), Cache::reader);
    let restored = match reader {
        Ok(None) => None,
        Ok(Some(reader)) => {
            let mut loader = Loader::new(LoadFrom::Packed(reader), found, progress);
            match loader.load(backend, found) {
                Ok(restored) => Some(Ok(restored)),
                Err(Restored::Damaged(why)) => Some(Err(why)),
                Err(error) => return Err(error.into()),
            }
        }
        Err(why) => Some(Err(why)),
    };
    match restored {
        Some(Ok(restored)) => {
            (origin.file, origin.restored) = (file, true);
            return Ok(restored);
        }
        Some(Err(why)) => {
            let what = "is not used and packed anew";
            origin.warnings.push(named(what, why));
        }
        None => {}
    }
    let writer = cache.map(Cache::writer).transpose();
    source.read_ahead();
    let from = LoadFrom::Checkpoint { source, writer };
    let mut loader = Loader::new(from, found, progress);
    let loaded = loader.load(backend, found)?;
    if let LoadFrom::Checkpoint { writer, .. } = loader.finish() {
        let unchanged = cache.is_none_or(|cache| cache.still_describes(source));
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
    }
    Ok(loaded)
}
