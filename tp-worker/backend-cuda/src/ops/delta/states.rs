//! States and records of recurrent layers in memory.

use std::sync::Arc;

use lockstep_backend::{DeltaShape, Recurrence, StatesShape};
use lockstep_types::StateLimits;

use super::check_delta;
use crate::error::CudaError;
use crate::runtime::{Buffer, Context};

/// Reason why a layer that goes on by another rule than the gated delta rule is refused.
pub const OTHER_RULES: &str =
    "Mamba-2 and short convolutions are not served on GPUs: give --device cpu";

/// States and records of recurrent layers of one shape.
///
/// Parts of a kind lie together, layer by layer: of states the matrices, then the last columns of
/// the convolution; of records keys, updates, raw columns and decays. `delta.cuh` says how each of
/// them lies.
pub struct CudaStates {
    layers: usize,
    delta: DeltaShape,
    limits: StateLimits,
    states: Buffer<f32>,
    records: Buffer<f32>,
}

/// Addresses at which the parts of one layer begin.
pub(super) struct Places {
    pub matrices: u64,
    pub columns: u64,
    pub keys: u64,
    pub updates: u64,
    pub raw: u64,
    pub decays: u64,
}

impl CudaStates {
    /// Allocates states and records. Their contents are unspecified.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Unsupported`] for heads that no kernel has.
    pub fn new(context: &Arc<Context>, shape: &StatesShape) -> Result<Self, CudaError> {
        let StatesShape {
            layers,
            recurrence,
            limits,
        } = *shape;
        let Recurrence::Delta(delta) = recurrence else {
            return Err(CudaError::Unsupported(OTHER_RULES.into()));
        };
        check_delta(&delta)?;
        // A product that overflows is refused like a size that memory does not have.
        let room = |count: usize, each: usize, what| {
            let len = layers.saturating_mul(count).saturating_mul(each);
            Buffer::new(context, len, what)
        };
        Ok(Self {
            layers,
            delta,
            limits,
            states: room(limits.states, delta.state(), "states of recurrent layers")?,
            records: room(
                limits.node_records(),
                delta.record(),
                "records of recurrent layers",
            )?,
        })
    }

    /// Heads of each layer.
    pub(crate) fn heads(&self) -> &DeltaShape {
        &self.delta
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.layers
    }

    /// Numbers of states and records.
    pub(super) fn limits(&self) -> &StateLimits {
        &self.limits
    }

    /// Elements of a state's matrices, and of its columns of the convolution.
    pub(super) fn widths(delta: &DeltaShape) -> [usize; 2] {
        [delta.matrices(), delta.state() - delta.matrices()]
    }

    /// Address at which all matrices of all layers begin, and that of all columns.
    pub(super) fn parts(&self) -> [u64; 2] {
        let Self {
            layers,
            delta,
            limits,
            ..
        } = self;
        let matrices = 4 * layers * limits.states * delta.matrices();
        let first = self.states.address();
        [first, first + matrices as u64]
    }

    /// # Panics
    /// Panics if there is no such layer.
    pub(super) fn of_layer(&self, layer: usize) -> Places {
        let Self {
            layers,
            delta,
            limits,
            ..
        } = self;
        assert!(layer < *layers, "{layers} recurrent layers have states");
        let [matrices, columns] = Self::widths(delta);
        let states = self.parts();
        let state =
            |part: usize, width: usize| states[part] + (4 * layer * limits.states * width) as u64;
        let nodes = limits.node_records();
        let widths = [
            delta.key_width(),
            delta.value_width(),
            delta.channels(),
            delta.value_heads,
        ];
        let mut first = self.records.address();
        let [keys, updates, raw, decays] = widths.map(|width| {
            let each = (4 * nodes * width) as u64;
            let own = first + layer as u64 * each;
            first += *layers as u64 * each;
            own
        });
        Places {
            matrices: state(0, matrices),
            columns: state(1, columns),
            keys,
            updates,
            raw,
            decays,
        }
    }
}
