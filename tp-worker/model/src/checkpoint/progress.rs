//! How far loading is, for people who wait.

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// What is being done.
    pub phase: LoadPhase,
    /// Bytes of this rank's weights, as the checkpoint has them, that are
    /// loaded; bytes of the checkpoint that are read; passes that are recorded; or
    /// steps that are timed.
    pub done: u64,
    /// All of them.
    pub total: u64,
}

/// Steps of loading.
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
    /// Made-up steps are timed, for costs by depth.
    Timing,
}

impl LoadPhase {
    /// For people.
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
