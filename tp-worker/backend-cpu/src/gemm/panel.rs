//! Sizes of panels of weights.

/// Columns of a panel: two registers of 16 lanes.
pub(crate) const PANEL: usize = 32;
/// Lanes of an accumulator.
pub(crate) const LANES: usize = 16;
