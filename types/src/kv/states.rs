//! States of recurrent layers: all that such layers keep of a text up to a position.

use crate::{EngineConfig, LayerSpec, ModelConfig, StepLimits};

/// Numbers of states and records of a DP rank.
///
/// A *state* is all that the recurrent layers keep of a text up to one position. One number names
/// the parts of a state in all of these layers, on every rank of the DP rank. A *record* is all
/// that a verified node adds to the state before it. A verification leaves states as they are and
/// writes records; the accepted ones are replayed onto the state later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateLimits {
    /// States: one for each running request, and the cached ones.
    pub states: usize,
    /// Requests that have records: the slots.
    pub records: usize,
    /// Nodes of a request that have records: the most tokens that any step verifies for it, over
    /// all tiers of depth.
    pub nodes: usize,
}

impl StateLimits {
    /// Halves of a request's records. A pass replays those of one half while it writes the other.
    pub const SIDES: usize = 2;

    /// Returns the limits of an engine with `states` states and steps within `step`. Records are
    /// sized by [`StepLimits::verified`], the most of all tiers, never by the tier that runs.
    pub fn of_steps(step: &StepLimits, states: usize) -> Self {
        Self {
            states,
            records: step.requests,
            nodes: step.verified,
        }
    }

    /// Returns limits with records of `nodes` nodes, for tests of records that are too few.
    #[must_use]
    pub fn with_nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// Returns the number of records of nodes.
    pub fn node_records(&self) -> usize {
        let nodes = self.records.saturating_mul(self.nodes);
        nodes.saturating_mul(Self::SIDES)
    }

    /// Returns the bytes of states and records on a rank, where a state takes `state` bytes and a
    /// record `record` bytes.
    pub fn bytes(&self, state: u64, record: u64) -> u64 {
        let states = (self.states as u64).saturating_mul(state);
        states.saturating_add((self.node_records() as u64).saturating_mul(record))
    }
}

impl LayerSpec {
    /// Returns true if the layer is recurrent: it keeps a state of the text instead of a cache of
    /// its positions.
    pub fn has_state(&self) -> bool {
        self.mixer.state_and_record_bytes(1).is_some()
    }
}

impl ModelConfig {
    /// Returns true if the model has recurrent layers.
    pub fn has_states(&self) -> bool {
        self.layers.iter().any(LayerSpec::has_state)
    }

    /// Returns the bytes of one state, and of the record of one node, in all recurrent layers on
    /// each of `ranks` ranks that split attention.
    pub fn state_and_record_bytes(&self, ranks: usize) -> [u64; 2] {
        let layers = self.layers.iter();
        let bytes = layers.filter_map(|layer| layer.mixer.state_and_record_bytes(ranks));
        bytes.fold([0; 2], |[states, records], [state, record]| {
            [states + state, records + record]
        })
    }
}

impl EngineConfig {
    /// Returns the bytes of one state, and of the record of one node, on a rank.
    pub fn state_and_record_bytes(&self) -> [u64; 2] {
        let ranks = self.parallel.tp_size / self.parallel.dp_size;
        self.model.state_and_record_bytes(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        GatedDeltaNames, GatedDeltaSpec, Mamba2Names, Mamba2Spec, Mixer, ShortConvolutionNames,
        ShortConvolutionSpec,
    };

    /// A layer of Qwen's models, which differ in the number of value heads.
    fn of_qwen(value_heads: usize) -> GatedDeltaSpec {
        GatedDeltaSpec {
            key_heads: 16,
            value_heads,
            key_dim: 128,
            value_dim: 128,
            taps: 4,
            names: GatedDeltaNames::default(),
        }
    }

    /// Sizes of Qwen3.6-35B-A3B: a state takes 2 MiB of matrices and 96 KiB of columns in each
    /// layer.
    #[test]
    fn states_and_records_have_the_bytes_of_their_parts() {
        let delta = of_qwen(32);
        let (matrices, channels) = (32 * 128 * 128, 2 * 16 * 128 + 32 * 128);
        assert_eq!(delta.channels(1), channels);
        assert_eq!(delta.state_bytes(1), 4 * (matrices + 3 * channels) as u64);
        let record = 16 * 128 + 32 * 128 + 32 + channels;
        assert_eq!(delta.record_bytes(1), 4 * record as u64);
        for ranks in [2, 4, 8, 16] {
            let whole = [delta.state_bytes(1), delta.record_bytes(1)];
            let parts = [delta.state_bytes(ranks), delta.record_bytes(ranks)];
            assert_eq!(parts.map(|part| part * ranks as u64), whole);
        }
        let limits = StateLimits {
            states: 10,
            records: 3,
            nodes: 5,
        };
        assert_eq!(limits.bytes(1000, 7), 10_000 + 2 * 3 * 5 * 7);
        assert_eq!(limits.with_nodes(2).bytes(1000, 7), 10_000 + 2 * 3 * 2 * 7);
    }

    /// The table of scratch in the documentation, by model: recurrent layers and value heads.
    #[test]
    fn the_documentation_has_the_scratch_of_a_request() {
        let documentation = include_str!("../../../docs/design/memory.md");
        let nodes = 1 + 8;
        let scratch = StateLimits {
            states: 0,
            records: 1,
            nodes,
        };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for (model, layers, value_heads) in [
            ("Qwen3.5-9B", 24, 32),
            ("Qwen3.6-27B", 48, 48),
            ("Qwen3.6-35B-A3B", 30, 32),
            ("Qwen3-Next-80B-A3B", 36, 32),
        ] {
            let delta = of_qwen(value_heads);
            let state = layers * delta.state_bytes(1);
            let records = scratch.bytes(state, layers * delta.record_bytes(1));
            let snapshots = nodes as u64 * state;
            let row = format!(
                "| {model} | {:.1} MiB | {:.1} MiB | {:.1} MiB | {:.1} |",
                mib(state),
                mib(records),
                mib(snapshots),
                snapshots as f64 / records as f64
            );
            assert!(documentation.contains(&row), "docs/design/memory.md: {row}");
        }
    }

    /// Sizes of Granite 4 Tiny, whose heads all share one group, of Nemotron 3 Nano and of LFM2. A
    /// group that several ranks have a part of is whole on each of them.
    #[test]
    fn parts_of_groups_are_copied() {
        let mamba = |heads, groups| Mamba2Spec {
            heads,
            head_dim: 64,
            groups,
            state_dim: 128,
            taps: 4,
            convolution_bias: true,
            bias: false,
            names: Mamba2Names::below("mamba."),
        };
        for (spec, ranks, copies, each) in [
            (mamba(48, 1), 1, 1, 48),
            (mamba(48, 1), 4, 1, 12),
            (mamba(64, 8), 2, 4, 8),
            (mamba(64, 8), 16, 1, 4),
            // Ranks of 4 heads, groups of 6.
            (mamba(12, 2), 3, 2, 2),
        ] {
            assert_eq!(spec.groups_per_rank(ranks), copies);
            assert_eq!(spec.shared_by(ranks), each);
            let heads = spec.heads / ranks;
            let channels = heads * 64 + 2 * copies * 128;
            assert_eq!(
                spec.state_bytes(ranks),
                4 * (heads * 64 * 128 + 3 * channels) as u64
            );
            let record = copies * 128 + heads * 65 + channels;
            assert_eq!(spec.record_bytes(ranks), 4 * record as u64);
        }
        let short = ShortConvolutionSpec {
            channels: 2048,
            taps: 3,
            bias: false,
            names: ShortConvolutionNames::default(),
        };
        assert_eq!(
            Mixer::ShortConvolution(short).state_and_record_bytes(4),
            Some([4096, 2048])
        );
    }
}
