//! Adapters: matrices of low rank beside a projection (LoRA, Hu et al., arXiv:2106.09685).

use std::ops::Range;

/// Stands for the place of a row's adapter where the row has none.
pub const NO_ADAPTER: f32 = -1.0;

/// Matrices of all adapters beside one projection, by the adapters' places. `M` is a device's
/// matrix.
///
/// A projection may be several, one below the other. Each of them is a part with outputs of its
/// own, and has its rows of `down`.
#[derive(Debug)]
pub struct AdaptedLinear<M> {
    /// Matrix `[parts · rank, in]` of each place: the rows of one part below those of another.
    pub down: Vec<M>,
    /// Rows of each part in `down`. An adapter of a smaller rank has zeros in the others.
    pub rank: usize,
    /// Parts of the projection.
    pub parts: Vec<AdaptedPart<M>>,
}

/// Adapters of one part of a projection.
#[derive(Debug)]
pub struct AdaptedPart<M> {
    /// Outputs of the projection that the part has.
    pub outputs: Range<usize>,
    /// Matrix `[outputs, rank]` of each place.
    pub up: Vec<M>,
    /// Factor of each place; `None` where there is no adapter, or the adapter leaves the part as it
    /// is.
    pub scales: Vec<Option<f32>>,
}

impl<M> AdaptedLinear<M> {
    /// Returns true if the adapter at `place` adds to a part of the projection.
    pub fn adapts(&self, place: usize) -> bool {
        let adapts = |part: &AdaptedPart<M>| part.scales.get(place).is_some_and(Option::is_some);
        self.parts.iter().any(adapts)
    }
}
