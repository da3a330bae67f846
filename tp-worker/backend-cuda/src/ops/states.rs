//! States and records of recurrent layers in memory.

mod copies;

use std::sync::Arc;

use lockstep_backend::{ConvolutionShape, Recurrence, StatesShape};
use lockstep_types::{GatedDeltaSpec, StateLimits};

use crate::error::CudaError;
use crate::runtime::{Buffer, Context};
pub(crate) use copies::StateCopies;
#[cfg(test)]
pub(crate) use copies::source as copies_source;

/// Widest heads: a thread has a fourth of a column of a matrix in registers.
const WIDEST: usize = 256;

/// Returns `Ok` if there are kernels for recurrent layers of this rule and shape.
///
/// # Errors
/// [`CudaError::Unsupported`] for heads that are too wide or no whole units.
pub fn check_recurrence(rule: &Recurrence) -> Result<(), CudaError> {
    let unit = GatedDeltaSpec::UNIT;
    let served = |dim: usize| dim.is_multiple_of(unit) && (unit..=WIDEST).contains(&dim);
    match rule.heads() {
        Some(heads) if !served(heads.key_dim) || !served(heads.value_dim) => {
            Err(CudaError::Unsupported(format!(
                "heads of recurrent layers are {} and {} wide, and GPUs serve multiples of {unit} up to {WIDEST}: give --device cpu",
                heads.key_dim, heads.value_dim
            )))
        }
        _ => Ok(()),
    }
}

/// States and records of recurrent layers of one rule.
///
/// Parts of a kind lie together, layer by layer: of states the matrices, then the last columns of
/// the convolution; of records keys, updates, raw columns and decays. `delta.cuh` says how each of
/// them lies. A convolution alone has columns, and raw columns.
pub struct CudaStates {
    layers: usize,
    rule: Recurrence,
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
            recurrence: rule,
            limits,
        } = *shape;
        check_recurrence(&rule)?;
        // A product that overflows is refused like a size that memory does not have.
        let room = |count: usize, each: usize, what| {
            let len = layers.saturating_mul(count).saturating_mul(each);
            Buffer::new(context, len, what)
        };
        let nodes = limits.node_records();
        Ok(Self {
            layers,
            rule,
            limits,
            states: room(limits.states, rule.state(), "states of recurrent layers")?,
            records: room(nodes, rule.record(), "records of recurrent layers")?,
        })
    }

    /// Rule of each layer.
    pub(crate) fn rule(&self) -> &Recurrence {
        &self.rule
    }

    /// Numbers of states and records.
    pub(super) fn limits(&self) -> &StateLimits {
        &self.limits
    }

    /// Elements of a state's matrices, and of its columns of the convolution.
    fn widths(&self) -> [usize; 2] {
        let ConvolutionShape { channels, taps } = self.rule.convolution();
        [self.rule.matrices(), channels * (taps - 1)]
    }

    /// Address at which all matrices of all layers begin, and that of all columns.
    fn parts(&self) -> [u64; 2] {
        let matrices = 4 * self.layers * self.limits.states * self.rule.matrices();
        let first = self.states.address();
        [first, first + matrices as u64]
    }

    /// # Panics
    /// Panics if there is no such layer.
    pub(super) fn of_layer(&self, layer: usize) -> Places {
        let (layers, limits) = (self.layers, &self.limits);
        assert!(layer < layers, "{layers} recurrent layers have states");
        let [matrices, columns] = self.widths();
        let states = self.parts();
        let state =
            |part: usize, width: usize| states[part] + (4 * layer * limits.states * width) as u64;
        let nodes = limits.node_records();
        let channels = self.rule.convolution().channels;
        let widths = self.rule.heads().map_or([0, 0, channels, 0], |heads| {
            let (keys, updates) = (heads.key_width(), heads.value_width());
            [keys, updates, channels, heads.value_heads]
        });
        let mut first = self.records.address();
        let [keys, updates, raw, decays] = widths.map(|width| {
            let each = (4 * nodes * width) as u64;
            let own = first + layer as u64 * each;
            first += layers as u64 * each;
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
