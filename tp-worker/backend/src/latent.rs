//! Operands of latent attention.

use lockstep_types::LatentAttentionSpec;

use crate::AttentionShape;

/// Heads of one rank of a latent attention, as [`LatentAttentionSpec`] explains them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentShape {
    /// Number of query heads.
    pub heads: usize,
    /// Columns of a head's query that are not rotated.
    pub nope: usize,
    /// Columns of a head's query, and of the shared key, that are rotated: a half, then the other.
    pub rotated: usize,
    /// Columns of the latent.
    pub latent: usize,
    /// Columns of a head's value.
    pub value: usize,
    /// Factor of the scores before the softmax.
    pub scale: f32,
}

impl LatentShape {
    /// Returns the shape of `heads` of the heads that `spec` describes.
    pub fn of(spec: &LatentAttentionSpec, heads: usize) -> Self {
        Self {
            heads,
            nope: spec.nope,
            rotated: spec.rotated,
            latent: spec.latent,
            value: spec.value,
            scale: spec.scale,
        }
    }

    /// Returns the number of columns of a token's cell.
    pub fn cell(&self) -> usize {
        self.latent + self.rotated
    }

    /// Returns the number of columns of a token's queries: those of all heads that are not rotated,
    /// then those that are.
    pub fn query_width(&self) -> usize {
        self.heads * (self.nope + self.rotated)
    }

    /// Returns the attention of queries that were multiplied by their heads' key matrices: all
    /// heads have the cell as their key, and the latent in it as their value.
    pub fn absorbed(&self) -> AttentionShape {
        AttentionShape {
            latent: Some(self.latent),
            ..AttentionShape::dense(self.heads, 1, self.cell(), self.scale)
        }
    }
}

/// Parameters of a latent attention between its projections. `M`, `V` and `R` are a device's
/// matrices, vectors and rotary angles.
#[derive(Debug)]
pub struct AttendLatent<'a, M, V, R> {
    /// Heads of this rank.
    pub shape: &'a LatentShape,
    /// Weight `[latent]` of the norm of the latent.
    pub norm: &'a V,
    /// Added to the mean square in this norm.
    pub eps: f32,
    /// Angles of every position, with `rotated / 2` pairs.
    pub rope: &'a R,
    /// Key matrix of each head, turned around: `[latent, nope]`.
    pub keys: &'a [M],
    /// Value matrix of each head, `[value, latent]`.
    pub values: &'a [M],
}

/// Space of a latent attention over `n` tokens. Its content afterwards is unspecified. `T` are a
/// device's activations.
#[derive(Debug)]
pub struct LatentSpace<'a, T> {
    /// Queries times key matrices with their rotated columns, then the token's cell,
    /// `[n, (heads + 1)·(latent + rotated)]`.
    pub qkv: &'a mut T,
    /// Means of latents, `[n, heads·latent]`.
    pub means: &'a mut T,
}
