//! Norms over all heads of a layer together, whose heads are split over ranks.

use lockstep_backend::CountedKeys;
use lockstep_types::{AttentionSpec, QkNorm};

use super::Attention;
use crate::Shard;

/// Numbers behind norms over all heads of a layer together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
    /// Key heads of this rank whose squares count among those of all ranks.
    pub counted: CountedKeys,
    /// Columns of the queries, and of the keys, on all ranks.
    pub widths: [usize; 2],
}

impl Together {
    /// Returns the numbers of an attention on the rank of `shard`, if its norms are of that kind.
    pub fn of(attention: &AttentionSpec, shard: &Shard) -> Option<Self> {
        let (heads, shape) = (shard.heads(attention), Attention::shape(attention, shard));
        let &AttentionSpec {
            heads: queries,
            kv_heads,
            head_dim,
            ..
        } = attention;
        (attention.qk_norm == QkNorm::Whole).then(|| Self {
            counted: CountedKeys {
                first: heads.queries.start,
                served: shape.heads / shape.kv_heads,
                group: queries / kv_heads,
            },
            widths: [queries * head_dim, kv_heads * head_dim],
        })
    }
}
