//! Latent attention: its sizes, and the names of its tensors.

use serde::{Deserialize, Serialize};

use super::rope::RopeConfig;

/// Multi-head latent attention (MLA; DeepSeek-V2, arXiv:2405.04434). Keys and values of all heads
/// are made of one latent for each position, `c`, and of one key `k_r` that is rotated and that
/// all heads share. Only these two are cached.
///
/// A head's query is `[q_n, q_r]`, of which `q_r` is rotated. With the head's matrices `K` and `V`,
/// its key is `[K·c, k_r]` and its value `V·c`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatentAttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Columns of a head's query that are not rotated.
    pub nope: usize,
    /// Columns of a head's query that are rotated, and columns of the shared key; an even number.
    pub rotated: usize,
    /// Columns of the latent.
    pub latent: usize,
    /// Columns of a head's value.
    pub value: usize,
    /// Columns of the latent that queries are made of; `None` makes them of the input.
    pub query_latent: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// Rotation of the rotated columns.
    pub rope: RopeConfig,
    /// True if neighbouring columns are rotated together; false if those of two halves are.
    pub interleaved: bool,
    /// True if the projections to the latents and the output projection have biases.
    pub bias: bool,
    /// Added to the mean square in the norms of the latents.
    pub norm_eps: f32,
    /// Names of the tensors.
    pub names: LatentAttentionNames,
}

impl LatentAttentionSpec {
    /// Returns the number of columns of a head's query.
    pub fn query(&self) -> usize {
        self.nope + self.rotated
    }

    /// Returns the number of elements of all matrices, in a model of width `hidden`.
    pub fn elements(&self, hidden: usize) -> usize {
        let queries = self.heads * self.query();
        let of_queries = match self.query_latent {
            None => hidden * queries,
            Some(latent) => latent * (hidden + queries),
        };
        let cells = hidden * (self.latent + self.rotated);
        let heads = self.latent * self.heads * (self.nope + self.value);
        of_queries + cells + heads + hidden * self.heads * self.value
    }
}

/// Names of a latent attention's tensors, as [`crate::TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentAttentionNames {
    /// Projection from the input to queries, where they have no latent.
    pub query: String,
    /// Projection from the input to the latent of queries.
    pub query_down: String,
    /// Norm of the latent of queries.
    pub query_norm: String,
    /// Projection from the latent to queries.
    pub query_up: String,
    /// Projection from the input to the latent of keys and values, and behind it the shared key.
    pub cell: String,
    /// Norm of the latent of keys and values.
    pub cell_norm: String,
    /// Rows of each head's key matrix, then of its value matrix, head after head.
    pub heads: String,
    /// Projection from attention to the residual stream.
    pub output: String,
}

/// Names of DeepSeek-V2, and of the families that are written as it is.
impl Default for LatentAttentionNames {
    fn default() -> Self {
        let name = |name: &str| format!("self_attn.{name}");
        Self {
            query: name("q_proj"),
            query_down: name("q_a_proj"),
            query_norm: name("q_a_layernorm"),
            query_up: name("q_b_proj"),
            cell: name("kv_a_proj_with_mqa"),
            cell_norm: name("kv_a_layernorm"),
            heads: name("kv_b_proj"),
            output: name("o_proj"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DeepSeek-V3's attention, whose matrices its report adds up to 187 million elements.
    #[test]
    fn elements_are_those_of_all_matrices() {
        let spec = LatentAttentionSpec {
            heads: 128,
            nope: 128,
            rotated: 64,
            latent: 512,
            value: 128,
            query_latent: Some(1536),
            scale: 1.0,
            rope: RopeConfig::plain(10_000.0),
            interleaved: true,
            bias: false,
            norm_eps: 1e-6,
            names: LatentAttentionNames::default(),
        };
        let queries = 7168 * 1536 + 1536 * 128 * 192;
        let rest = 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168;
        assert_eq!(spec.elements(7168), queries + rest);
        let direct = LatentAttentionSpec {
            query_latent: None,
            ..spec
        };
        assert_eq!(direct.elements(7168), 7168 * 128 * 192 + rest);
    }
}
