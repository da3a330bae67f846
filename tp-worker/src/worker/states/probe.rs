//! A probe of recurrent states, for tests that compare their bits. It sees something in builds with
//! the feature `state-probe` alone.

#[cfg(feature = "state-probe")]
use std::sync::Arc;

use lockstep_backend::Backend;

use crate::worker::Worker;

/// The bits of a state behind a step, and the text that it is a state of.
#[derive(Debug, Clone, Copy)]
pub struct SeenState<'a> {
    /// The rank; it has the bits of its own heads.
    pub rank: usize,
    /// All tokens up to the state's position.
    pub text: &'a [u32],
    /// Bits in all recurrent layers.
    pub bits: &'a [u32],
    /// True for a copy that the step kept for the prefix cache, false for a live state.
    pub kept: bool,
}

#[cfg(feature = "state-probe")]
type Look = Arc<dyn Fn(SeenState<'_>) + Send + Sync>;

/// A callback that sees the states that each step leaves: those of the step's rows and the copies
/// that were kept.
#[derive(Clone, Default)]
pub struct StateProbe {
    #[cfg(feature = "state-probe")]
    look: Option<Look>,
}

impl StateProbe {
    /// Makes a probe that calls `look` for each state, in the threads of the ranks.
    #[cfg(feature = "state-probe")]
    pub fn new(look: impl Fn(SeenState<'_>) + Send + Sync + 'static) -> Self {
        Self {
            look: Some(Arc::new(look)),
        }
    }
}

impl<B: Backend + 'static> Worker<B> {
    /// Shows the states of the step's rows to the probe, once their outcomes are known.
    #[cfg(feature = "state-probe")]
    pub(in crate::worker) fn probe_states(&self) {
        let Some(look) = &self.state_probe.look else {
            return;
        };
        let states = &self.states;
        let show = |slot: usize, position: u32, state: u32, kept: bool| {
            look(SeenState {
                rank: self.group().0,
                text: &self.slots.get(slot).tokens[..position as usize],
                bits: &self.cache.state_bits(&self.backend, state),
                kept,
            });
        };
        for ((task, row), asked) in self.tasks.iter().zip(&states.rows).zip(&states.asked_by) {
            let position = states.slots[task.slot].position;
            show(task.slot, position, row.state, false);
            for keep in row.keeps.of(&states.keeps) {
                let asked = asked.of(&states.asked);
                let of = asked.iter().find(|asked| asked.state == keep.state);
                of.inspect(|of| show(task.slot, of.position, of.state, true));
            }
        }
    }

    /// Does nothing: in this build probes see nothing.
    #[cfg(not(feature = "state-probe"))]
    pub(in crate::worker) fn probe_states(&self) {
        let StateProbe {} = &self.state_probe;
    }
}
