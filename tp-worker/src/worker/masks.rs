//! Masks of constrained requests whose tokens a device chooses.

use lockstep_backend::{ChoiceBatch, Masks};
use lockstep_sampling::TokenConstraint as _;

use super::{
    WorkerError,
    batch::{BatchBuffers, LogitUse, Wanted},
    slots::{RowTask, Slots},
};

/// Variable of the environment that places the masks of every rank of a program.
const VARIABLE: &str = "LOCKSTEP_CONSTRAINT_MASKS";

/// Place where the masks of constrained requests meet their logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaskPlace {
    /// The logits of constrained requests come to the host, which chooses their tokens.
    #[default]
    Host,
    /// The host makes masks while the layers run, and the device chooses by them. Requests with
    /// drafts in a step, or with more than masks, stay with the host.
    Device,
}

impl MaskPlace {
    /// Returns the place that the environment names; the host, if it names none.
    ///
    /// # Errors
    /// [`WorkerError::Masks`] if it names another thing.
    pub fn of_environment() -> Result<Self, WorkerError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::default()),
            Some(word) => Self::named(&word.to_string_lossy()),
        }
    }

    fn named(word: &str) -> Result<Self, WorkerError> {
        match word {
            "host" => Ok(Self::Host),
            "device" => Ok(Self::Device),
            _ => Err(WorkerError::Masks(format!(
                "{VARIABLE} is host or device, not {word:?}"
            ))),
        }
    }
}

/// The masks of a step, made once, on the rank that samples.
#[derive(Debug)]
pub struct RowMasks {
    place: MaskPlace,
    /// Words of a mask.
    words: usize,
    /// Masked rows of the wanted logits, and for each of them the number of its task.
    rows: Vec<u32>,
    tasks: Vec<usize>,
    bits: Vec<u32>,
    /// True once the step's masks are made.
    made: bool,
}

impl RowMasks {
    /// Makes room for no masks at all: hosts choose the tokens of constrained requests.
    pub fn new(vocab: usize) -> Self {
        Self {
            place: MaskPlace::Host,
            words: vocab.div_ceil(32),
            rows: Vec::new(),
            tasks: Vec::new(),
            bits: Vec::new(),
            made: false,
        }
    }

    /// Makes room for the masks of `requests` requests, where masks are the device's.
    pub fn set_place(&mut self, place: MaskPlace, requests: usize) {
        self.place = place;
        if place == MaskPlace::Device {
            self.rows.reserve(requests);
            self.tasks.reserve(requests);
            self.bits.reserve(requests * self.words);
        }
    }

    /// Returns true if devices choose by masks.
    pub fn on_device(&self) -> bool {
        self.place == MaskPlace::Device
    }

    /// Begins a step: notes the constrained rows of `batch` that the device chooses from.
    pub fn begin(
        &mut self,
        batch: &BatchBuffers,
        tasks: &[RowTask],
        slots: &Slots,
        choices: ChoiceBatch<'_>,
    ) {
        self.rows.clear();
        self.tasks.clear();
        self.bits.clear();
        self.made = false;
        if !self.on_device() {
            return;
        }
        for (at, LogitUse { row, wanted }) in batch.uses().iter().enumerate() {
            let task = &tasks[*row];
            let constrained = slots.get(task.slot).generation.constraint.is_some();
            let chooses = matches!(wanted, Wanted::Node(_)) && !choices.is_hosts(task.choice);
            if constrained && chooses {
                self.rows.push(at as u32);
                self.tasks.push(*row);
            }
        }
    }

    /// Returns the step's masks, and makes them first if that was not done. A constraint that
    /// can't be followed allows nothing, so the device finds no token for the row.
    pub fn make(&mut self, tasks: &[RowTask], slots: &mut Slots) -> Masks<'_> {
        if !self.made {
            self.bits.resize(self.rows.len() * self.words, 0);
            let masks = self.bits.chunks_exact_mut(self.words.max(1));
            for (to, task) in masks.zip(&self.tasks) {
                let slot = slots.get_mut(tasks[*task].slot);
                let allowed = slot.constraint.as_mut().map(|own| own.allowed());
                if let Some(Ok(allowed)) = allowed {
                    let words = allowed.len().min(to.len());
                    to[..words].copy_from_slice(&allowed[..words]);
                }
            }
            self.made = true;
        }
        Masks {
            rows: &self.rows,
            bits: &self.bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_or_refused() {
        assert_eq!(MaskPlace::named("host").unwrap(), MaskPlace::Host);
        assert_eq!(MaskPlace::named("device").unwrap(), MaskPlace::Device);
        for word in ["", "1", "Device", "gpu"] {
            let error = MaskPlace::named(word).unwrap_err().to_string();
            assert!(error.contains("host or device"), "{word}: {error}");
        }
    }
}
