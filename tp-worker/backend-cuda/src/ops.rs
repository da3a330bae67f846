//! The operations of a transformer: products, attention, norms, experts and element-wise work.

pub(crate) mod attention;
pub(crate) mod blocks;
pub(crate) mod delta;
pub(crate) mod experts;
pub(crate) mod groups;
mod indices;
pub(crate) mod latent;
pub(crate) mod products;
pub(crate) mod random;
pub(crate) mod rowwise;
pub(crate) mod short;
pub(crate) mod states;
mod sums;

pub use attention::{
    Attention, Beside, Cut, HeadNorms, PagedCache, Queries, Rope, Work, WorkLimits,
};
pub use blocks::BlockOps;
pub(crate) use blocks::number_of;
pub(crate) use delta::{HeadOps, HeadTensors, HeadWeights};
pub(crate) use experts::MOST_EXPERT_COLUMNS;
pub use experts::check_experts;
pub(crate) use experts::products::ExpertProducts;
pub(crate) use experts::{ExpertOps, MixtureSpace};
pub(crate) use groups::GroupOps;
pub use indices::Indices;
pub(crate) use indices::IndicesParameter;
pub(crate) use latent::{LatentOp, LatentOps};
pub(crate) use products::WORKSPACE;
pub use products::{Operands, Product, Products};
pub(crate) use random::Random;
pub(crate) use rowwise::JoinedRows;
pub use rowwise::RowwiseOps;
pub(crate) use short::ShortOps;
pub(crate) use states::StateCopies;
pub use states::{CudaStates, check_recurrence};
pub(crate) use sums::SumsParameter;
pub use sums::{Sums, SumsWithSpace};
