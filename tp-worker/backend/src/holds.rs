//! What activations are for.

/// What a tensor holds, by which a device chooses its type in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Sums: the residual stream, and what is added to it. f32 on every device.
    Sum,
    /// What products and attention read, and what they leave for each other:
    /// f32, or the type that the device multiplies in.
    Operand,
    /// Logits, which are read on the host: f32 on every device.
    Logits,
}
