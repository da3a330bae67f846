//! Progress of loading, to show to people.

/// Progress of one phase of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// The current phase.
    pub phase: LoadPhase,
    /// Amount done in this phase: bytes of this rank's weights that are loaded, as large as
    /// in the checkpoint; bytes of the checkpoint that are read; passes that are recorded; or
    /// steps that are timed.
    pub done: u64,
    /// Amount of the whole phase, in the unit of `done`.
    pub total: u64,
}

/// Phases of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadPhase {
    /// The checkpoint is read to find out whether it was packed before.
    Checking,
    /// The checkpoint's weights are packed.
    Packing,
    /// Weights that were packed before are read.
    Restoring,
    /// The device records the passes that it will repeat.
    Recording,
    /// Made-up steps are timed to learn the cost of each draft depth.
    Timing,
}

impl LoadPhase {
    /// Name of the phase, to show to people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Checking => "reading the checkpoint",
            Self::Packing => "loading weights",
            Self::Restoring => "loading packed weights",
            Self::Recording => "recording passes",
            Self::Timing => "timing steps",
        }
    }
}
