//! The operations of one device, in five traits.

mod adapt;
mod exchange;
mod memory;
mod ops;
mod passes;

pub use adapt::Adapt;
pub use exchange::Exchange;
pub use memory::Memory;
pub use ops::Ops;
pub use passes::Passes;

/// One device, with one shard of a model, or of several models.
///
/// All activations are matrices `[tokens, width]`, row-major. A [`Memory::Tensor`] has a fixed
/// capacity in rows, a row count, and a type in memory, which follows from its content:
/// [`Holds`] lists the operations for each content. No operation takes one tensor twice.
///
/// Operations take effect in the order of the calls. A device may queue an operation and
/// return. If the operation fails then, a later operation that returns errors returns it.
///
/// **Batch invariance.** Every output row depends only on its own input row (for attention: on
/// its own request). Each element is accumulated in one fixed order, however many rows or
/// requests share the call.
pub trait Backend: Memory + Ops + Passes + Exchange + Adapt {}

impl<B: Memory + Ops + Passes + Exchange + Adapt> Backend for B {}
