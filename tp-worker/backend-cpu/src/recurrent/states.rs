//! States and records in memory.

use std::ops::Range;

use lockstep_backend::{
    BackendError, ConvolutionShape, DeltaShape, Recurrence, RowState, StatesShape, states_misfit,
};
use lockstep_types::StateLimits;

use crate::inputs::CpuInputs;
use crate::memory::Buffer;
use crate::partition::Shared;
use crate::pool::Pool;

/// States and records of recurrent layers of one shape.
///
/// A state's matrices lie head by head, and in a head by tiles of [`tile_width`] columns:
/// `[value_heads][tiles][key_dim][tile_width]`. Behind them in a buffer of their own are its last
/// columns of the convolution, the oldest first: `[taps − 1][channels]`.
pub struct CpuStates {
    shape: StatesShape,
    /// `[layers][states]` of matrices.
    matrices: Buffer<f32>,
    /// `[layers][states]` of columns.
    columns: Buffer<f32>,
    /// `[layers][records][sides][nodes]` of records.
    records: Buffer<f32>,
    /// Number of the pass whose batch was checked.
    checked: u64,
}

/// Columns of values that a job works on at once.
pub(super) fn tile_width(shape: &DeltaShape) -> usize {
    if shape.value_dim.is_multiple_of(32) {
        32
    } else {
        16
    }
}

/// States and records of one layer, for threads that each write parts of their own.
pub(super) struct Places<'a> {
    rule: Recurrence,
    /// Heads of matrices; none in a convolution alone.
    pub heads: DeltaShape,
    pub convolution: ConvolutionShape,
    nodes: usize,
    pub matrices: Shared<'a, f32>,
    pub columns: Shared<'a, f32>,
    pub records: Shared<'a, f32>,
}

/// Parts of a node's record, in the order of its layout.
pub(super) struct Record {
    /// Keys of all key heads.
    pub keys: Range<usize>,
    /// Updates of all value heads.
    pub updates: Range<usize>,
    /// Decays of all value heads.
    pub decays: Range<usize>,
    /// Column of the convolution.
    pub column: Range<usize>,
}

impl CpuStates {
    /// Maps states and records of this shape; memory is taken as it is written.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] for widths of heads that are no
    /// whole tiles.
    pub(crate) fn new(shape: &StatesShape) -> Result<Self, BackendError> {
        let StatesShape {
            layers,
            recurrence,
            limits,
        } = *shape;
        let unit = lockstep_types::GatedDeltaSpec::UNIT;
        let odd = |heads: &&DeltaShape| {
            !heads.key_dim.is_multiple_of(unit) || !heads.value_dim.is_multiple_of(unit)
        };
        if let Some(heads) = recurrence.heads().filter(odd) {
            return Err(BackendError::Unsupported(format!(
                "heads of recurrent layers are {} and {} wide; use a model whose heads are \
                 multiples of {unit} wide",
                heads.key_dim, heads.value_dim
            )));
        }
        let room = |count: usize, each: usize, what| {
            let len = layers.saturating_mul(count).saturating_mul(each);
            Buffer::zeroed(len, what)
        };
        let matrices = recurrence.matrices();
        Ok(Self {
            shape: *shape,
            matrices: room(limits.states, matrices, "states of recurrent layers")?,
            columns: room(
                limits.states,
                recurrence.state() - matrices,
                "states of recurrent layers",
            )?,
            records: room(
                limits.node_records(),
                recurrence.record(),
                "records of recurrent layers",
            )?,
            checked: 0,
        })
    }

    /// Bytes of all states and records when they are full.
    pub(crate) fn bytes(&self) -> usize {
        self.matrices.bytes() + self.columns.bytes() + self.records.bytes()
    }

    /// Returns the bits of a state in all layers: matrices, then columns.
    #[cfg(feature = "state-probe")]
    pub(crate) fn bits(&self, state: u32) -> Vec<u32> {
        let StatesShape {
            recurrence, limits, ..
        } = self.shape;
        let matrices = recurrence.matrices();
        let widths = [matrices, recurrence.state() - matrices];
        let parts = [&self.matrices, &self.columns].into_iter().zip(widths);
        let parts = parts.filter(|(_, width)| *width > 0);
        let of_layers = parts.flat_map(|(buffer, width)| {
            let states = buffer.chunks_exact(width).skip(state as usize);
            states.step_by(limits.states).flatten()
        });
        of_layers.map(|value| value.to_bits()).collect()
    }

    /// Panics unless the layers go on by `rule` and have all that the staged batch names.
    pub(super) fn expect(&mut self, rule: &Recurrence, inputs: &CpuInputs) {
        assert!(
            *rule == self.shape.recurrence,
            "states have the layer's rule"
        );
        if self.checked == inputs.pass {
            return;
        }
        assert!(
            inputs.states.len() == inputs.rows.len(),
            "each row has a state where layers are recurrent"
        );
        let lengths = inputs.rows.iter().map(|row| row.q_len);
        let (states, replays, keeps) = (&inputs.states, &inputs.replays, &inputs.keeps);
        let misfit = states_misfit(&self.shape.limits, states, lengths, replays, keeps);
        assert!(misfit.is_none(), "{}", misfit.unwrap_or_default());
        self.checked = inputs.pass;
    }

    /// Returns the states and records of layer `layer`.
    pub(super) fn of_layer(&mut self, layer: usize) -> Places<'_> {
        let StatesShape {
            recurrence, limits, ..
        } = self.shape;
        let part = |buffer: &mut Buffer<f32>, each: usize| -> Range<usize> {
            debug_assert!(each * (layer + 1) <= buffer.len());
            each * layer..each * (layer + 1)
        };
        let [matrices, columns] = parts(&recurrence).map(|each| limits.states * each);
        let records = limits.node_records() * recurrence.record();
        let [matrices, columns, records] = [
            part(&mut self.matrices, matrices),
            part(&mut self.columns, columns),
            part(&mut self.records, records),
        ];
        let none = DeltaShape {
            key_heads: 0,
            value_heads: 0,
            key_dim: 0,
            value_dim: 0,
            taps: recurrence.convolution().taps,
        };
        Places {
            rule: recurrence,
            heads: recurrence.heads().copied().unwrap_or(none),
            convolution: recurrence.convolution(),
            nodes: limits.nodes,
            matrices: Shared::new(&mut self.matrices[matrices]),
            columns: Shared::new(&mut self.columns[columns]),
            records: Shared::new(&mut self.records[records]),
        }
    }

    /// Copies whole states in all layers: see [`lockstep_backend::Ops::copy_states`].
    ///
    /// # Panics
    /// Panics if there is no such state.
    pub(crate) fn copy(&mut self, pool: &mut Pool, moves: &[(u32, u32)]) {
        let StatesShape {
            layers,
            recurrence,
            limits,
        } = self.shape;
        let (count, widths) = (limits.states, parts(&recurrence));
        let all = [&mut self.matrices, &mut self.columns];
        for (buffer, width) in all.into_iter().zip(widths) {
            if layers * count == 0 {
                assert!(moves.is_empty(), "a state that is copied exists");
                continue;
            }
            let shared = Shared::new(buffer);
            pool.for_chunks(layers, |_, layer| {
                let first = layer * count * width;
                // SAFETY: each layer is one thread's.
                let own = unsafe { shared.slice(first..first + count * width) };
                for (from, to) in moves {
                    let from = *from as usize * width;
                    own.copy_within(from..from + width, *to as usize * width);
                }
            });
        }
    }
}

/// Elements of the matrices of one state in one layer, and of its columns.
fn parts(rule: &Recurrence) -> [usize; 2] {
    [rule.matrices(), rule.state() - rule.matrices()]
}

impl Places<'_> {
    /// Returns the place of tile `tile` of a head in a state.
    pub(super) fn tile(&self, state: u32, head: usize, tile: usize) -> Range<usize> {
        let (dim, width) = (self.heads.key_dim, tile_width(&self.heads));
        let of_head = head * dim * self.heads.value_dim + tile * dim * width;
        let start = state as usize * self.heads.matrices() + of_head;
        start..start + dim * width
    }

    /// Returns the place of a state's columns of the convolution.
    pub(super) fn columns(&self, state: u32) -> Range<usize> {
        let ConvolutionShape { channels, taps } = self.convolution;
        let len = channels * (taps - 1);
        state as usize * len..(state as usize + 1) * len
    }

    /// Returns the place of the record of node `node` in half `side` of a row's records.
    pub(super) fn record(&self, row: &RowState, side: u32, node: u32) -> Record {
        let places = row.records as usize * StateLimits::SIDES + side as usize;
        let start = (places * self.nodes + node as usize) * self.rule.record();
        let keys = start..start + self.heads.key_width();
        let updates = keys.end..keys.end + self.heads.value_width();
        let decays = updates.end..updates.end + self.heads.value_heads;
        let column = decays.end..decays.end + self.convolution.channels;
        Record {
            keys,
            updates,
            decays,
            column,
        }
    }

    /// Returns the place of the record of a node that a row replays: in the half that this pass
    /// doesn't write.
    pub(super) fn replayed(&self, row: &RowState, node: u32) -> Record {
        self.record(row, 1 - row.side, node)
    }
}
