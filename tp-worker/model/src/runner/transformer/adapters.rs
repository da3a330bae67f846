//! Adapters of a transformer: room for them, and those that are placed.

use lockstep_backend::{
    AdaptedLinear, AdaptedPart, Backend, BackendError, Batch, CheckpointDtype, HostBlock,
    HostFloats, HostMatrix, MatrixShape,
};
use lockstep_types::AdapterLimits;

use super::Transformer;
use crate::{AdapterReader, ModelError, ReadAdapter, models::adapters::Adaptable};

/// Room for adapters, and the places that have one.
pub(super) struct Adapters {
    limits: AdapterLimits,
    placed: Vec<bool>,
}

impl Adapters {
    /// Makes room for adapters within `limits`, none of which is placed.
    pub fn new(limits: AdapterLimits) -> Self {
        Self {
            limits,
            placed: vec![false; limits.places.into()],
        }
    }
}

/// Allocates room for adapters within `limits` beside `projections`.
///
/// # Errors
/// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] on a device without adapters.
pub(super) fn allocate<B: Backend>(
    backend: &mut B,
    projections: &[Adaptable],
    limits: AdapterLimits,
) -> Result<Vec<AdaptedLinear<B::Matrix>>, BackendError> {
    if limits.places == 0 {
        return Ok(Vec::new());
    }
    B::serves_adapters().map_err(|why| BackendError::Unsupported(why.to_owned()))?;
    let mut zeros = |shape: MatrixShape| -> Result<Vec<B::Matrix>, BackendError> {
        let row = vec![0; 4 * shape.cols];
        // All rows are the same zeros.
        let host = floats(&row, shape.cols, 0, shape.rows);
        let places = (0..limits.places).map(|_| backend.load_matrix(&host, shape.format));
        places.collect()
    };
    let mut all = Vec::with_capacity(projections.len());
    for projection in projections {
        let down = zeros(projection.down(limits.rank))?;
        let parts = projection.outputs().into_iter().map(|outputs| {
            Ok(AdaptedPart {
                up: zeros(Adaptable::up(outputs.len(), limits.rank))?,
                scales: vec![None; limits.places.into()],
                outputs,
            })
        });
        let parts = parts.collect::<Result<_, BackendError>>()?;
        all.push(AdaptedLinear {
            down,
            rank: limits.rank,
            parts,
        });
    }
    Ok(all)
}

/// Returns `rows` rows of f32 in `bytes`, a `stride` of bytes apart.
fn floats(bytes: &[u8], cols: usize, stride: usize, rows: usize) -> HostMatrix<'_> {
    let block = HostBlock {
        bytes,
        offset: 0,
        stride,
        rows,
    };
    HostMatrix::Floats(HostFloats {
        cols,
        dtype: CheckpointDtype::F32,
        blocks: vec![block],
    })
}

impl<B: Backend> Transformer<B> {
    /// Returns a reader of adapters for this rank.
    pub fn adapter_reader(&self) -> AdapterReader {
        AdapterReader::new(&self.model, &self.shard, self.adapters.limits)
    }

    /// Puts an adapter that [`Self::adapter_reader`] has read in `place`, for the passes from now
    /// on, in place of the one that was there. It takes no more memory.
    ///
    /// # Errors
    /// [`ModelError::NoAdapter`] for a place that there is no room for; [`ModelError::Backend`].
    pub fn place_adapter(
        &mut self,
        backend: &mut B,
        place: u16,
        adapter: &ReadAdapter,
    ) -> Result<(), ModelError> {
        let at = usize::from(place);
        if at >= self.adapters.placed.len() {
            return Err(ModelError::NoAdapter { place });
        }
        self.clear_adapter(place);
        let rank = self.adapters.limits.rank;
        let projections = self.context.adapters.iter_mut().zip(&adapter.projections);
        for (linear, read) in projections {
            let Some(read) = read else {
                continue;
            };
            let columns = read.down.len() / (4 * linear.parts.len() * rank);
            let down = floats(&read.down, columns, 4 * columns, linear.parts.len() * rank);
            backend.replace_matrix(&mut linear.down[at], &down)?;
            for (part, read) in linear.parts.iter_mut().zip(&read.parts) {
                if let Some((scale, up)) = read {
                    let up = floats(up, rank, 4 * rank, part.outputs.len());
                    backend.replace_matrix(&mut part.up[at], &up)?;
                    part.scales[at] = Some(*scale);
                }
            }
        }
        self.adapters.placed[at] = true;
        Ok(())
    }

    /// Takes the adapter at `place` away, if there is one. Its room stays.
    pub fn clear_adapter(&mut self, place: u16) {
        let at = usize::from(place);
        let parts = self.context.adapters.iter_mut();
        for part in parts.flat_map(|linear| &mut linear.parts) {
            if let Some(scale) = part.scales.get_mut(at) {
                *scale = None;
            }
        }
        if let Some(placed) = self.adapters.placed.get_mut(at) {
            *placed = false;
        }
    }

    /// Checks that the adapters of the batch's rows are placed, and notes whether there are some.
    /// With several DP ranks the others may bring some.
    ///
    /// # Errors
    /// [`ModelError::NoAdapter`].
    pub(super) fn expect_adapters(&mut self, batch: &Batch<'_>) -> Result<(), ModelError> {
        let placed = &self.adapters.placed;
        let is_placed = |place: u16| placed.get(usize::from(place)).is_some_and(|placed| *placed);
        let mut named = batch.adapters.iter().flatten();
        if let Some(place) = named.find(|place| !is_placed(**place)) {
            return Err(ModelError::NoAdapter { place: *place });
        }
        let some = batch.adapters.iter().any(Option::is_some);
        if let Some(own) = &mut self.buffers.layer.adapters {
            own.set_active(some || self.world.is_some());
        }
        Ok(())
    }
}
