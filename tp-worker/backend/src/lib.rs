//! The operations that a transformer needs on one device.
//!
//! Models are written once against [`Backend`]. `backend-cpu` implements it on CPU cores; a
//! CUDA backend implements the same operations on streams. There is one kind of forward pass,
//! the ragged extend described by [`Batch`].

#![forbid(unsafe_code)]

mod adapters;
mod axis;
mod backend;
mod batch;
mod choice;
mod collective_call;
mod composed;
mod drafting;
mod error;
mod holds;
pub mod host;
mod inputs;
mod latent;
mod layer;
mod masks;
mod memory;
mod notes;
mod pass;
mod recurrent;
mod shape;
mod state_rules;
mod states;
#[cfg(feature = "testing")]
pub mod testing;
mod tree_size;
mod weights;
mod world;

pub use adapters::{AdaptedLinear, AdaptedPart, NO_ADAPTER};
pub use axis::{Axis, Groups};
pub use backend::{Adapt, Backend, Exchange, Memory, Ops, Passes};
pub use batch::{Batch, ChainBatch, DraftShape, Row};
pub use choice::{
    Choice, ChoiceBatch, ChoiceLimits, ChoiceMethod, ChoiceRow, Chosen, DeviceSampler, DraftedRow,
    FAILED,
};
pub use collective_call::{CollectiveCall, ExchangeKind, PassPlan, PassRecords};
pub use drafting::{ChainLimits, DeviceDrafter, DeviceTreeDrafter, TreePass};
pub use error::BackendError;
pub use holds::Holds;
pub use inputs::{InputLimits, Rows};
pub use latent::{AttendLatent, LatentShape, LatentSpace};
pub use layer::{
    Attend, BlockEnd, CountedKeys, ExpertSpace, Experts, Linear, LogitScaling, Norm, RmsNorm,
    RowParallel, Scatter, WholeNorms,
};
pub use lockstep_collective::Owners;
pub use lockstep_types::{MatrixRole, WeightFormat};
pub use masks::Masks;
pub use memory::{
    AdaptedShape, DeviceMemory, ExpertsShape, LatentHeads, MatrixShape, PassShape, RankLayout,
};
pub use notes::{ExchangeNotes, NoteShape, Notes};
pub use pass::PassKey;
pub use recurrent::{
    ColumnGroups, DeltaOperands, GatedDelta, Mamba2, Mamba2Operands, ShortConvolution,
};
pub use shape::{
    AttentionShape, ConvolutionShape, DeltaShape, KvShape, Recurrence, RopeTable, StatesShape,
};
pub use states::{NoStates, RowState, Span, StateKeep, states_misfit};
pub use tree_size::{MOST_CANDIDATES, TreeSize};
pub use weights::{
    CheckpointDtype, E2m1, E4m3, E8m0, HostBlock, HostFloats, HostForm, HostFp8, HostJoined,
    HostMatrix, HostMxfp4, HostTurned, HostTurnedFp8, Mxfp4Group, Outputs, RandomBlock,
    RandomMatrix, RandomNumbers, ScaleGrid, ScalePart,
};
pub use world::{WorldRows, WorldSize};
