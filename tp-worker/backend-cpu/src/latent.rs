//! Latent attention between its projections: products of each head with its own matrices, and a
//! token's queries and cell on their way to attention.

use lockstep_backend::{BackendError, LatentHeads, LatentShape};

use crate::formats::{CpuMatrix, Format};
use crate::gemm::{Apart, Groups, Inputs, Scratch, grouped_matmul, grouped_words};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::norm::norm_row;
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::rope::CpuRope;

/// A product of each head's columns of all tokens with the head's matrix.
pub(crate) struct HeadProduct<'a> {
    /// A matrix of each head.
    pub matrices: &'a [CpuMatrix],
    /// Inputs of all tokens, and places of heads among them.
    pub inputs: (&'a [f32], Apart),
    /// Results of all tokens, and places of heads among them.
    pub out: (&'a mut [f32], Apart),
    /// Number of tokens.
    pub tokens: usize,
}

impl HeadProduct<'_> {
    /// Multiplies. `lists` and `packed` grow to [`list_words`] and [`packed_words`].
    pub(crate) fn run(
        self,
        pool: &mut Pool,
        isa: Isa,
        lists: &mut Buffer<u32>,
        packed: &mut Buffer<u32>,
    ) -> Result<(), BackendError> {
        if self.tokens == 0 {
            return Ok(());
        }
        let heads = self.matrices.len();
        lists.grow(list_words(heads), "lists of heads")?;
        let (starts, rest) = lists.split_at_mut(heads + 1);
        for (head, start) in starts.iter_mut().enumerate() {
            *start = (head * self.tokens) as u32;
        }
        let groups = Groups {
            matrices: self.matrices,
            biases: None,
            starts,
            placed: Some(self.out.1),
        };
        let inputs = Inputs {
            values: self.inputs.0,
            order: None,
            apart: Some(self.inputs.1),
        };
        let scratch = Scratch {
            packed,
            firsts: &mut rest[..heads + 1],
        };
        grouped_matmul(pool, isa, inputs, groups, scratch, self.out.0)
    }
}

/// Norm of latents: weights, and the value that is added to the mean square.
pub(crate) type Norm<'a> = (&'a [f32], f32);

/// Completes each token's row of `qkv`, which has the products of heads in it: rotates the other
/// columns of `query` behind them, scales queries where the table has factors, and puts the normed
/// and rotated `cell` at the end.
pub(crate) fn assemble(
    pool: &mut Pool,
    isa: Isa,
    shape: &LatentShape,
    (query, cell): (&[f32], &[f32]),
    norm: Norm<'_>,
    (rope, positions): (&CpuRope, &[u32]),
    qkv: &mut [f32],
) {
    let &LatentShape {
        heads,
        nope,
        rotated,
        latent,
        ..
    } = shape;
    let (each, query_width) = (shape.cell(), shape.query_width());
    let width = (heads + 1) * each;
    for_rows(pool, qkv, width, |rows, part| {
        for (token, row) in rows.zip(part.chunks_exact_mut(width)) {
            let position = positions[token];
            let turned = &query[token * query_width + heads * nope..(token + 1) * query_width];
            let (queries, own) = row.split_at_mut(heads * each);
            let of_heads = queries.chunks_exact_mut(each);
            for (to, from) in of_heads.zip(turned.chunks_exact(rotated)) {
                to[latent..].copy_from_slice(from);
                rope.rotate(isa, position, &mut to[latent..]);
            }
            if let Some(factor) = rope.query_factor(position) {
                queries.iter_mut().for_each(|value| *value *= factor);
            }
            let cell = &cell[token * each..(token + 1) * each];
            let (weights, eps) = norm;
            norm_row(isa, &cell[..latent], weights, eps, &mut own[..latent]);
            own[latent..].copy_from_slice(&cell[latent..]);
            rope.rotate(isa, position, &mut own[latent..]);
        }
    });
}

/// Words of packed inputs of the products of these heads, for `tokens` tokens.
pub(crate) fn packed_words(
    isa: Isa,
    tokens: usize,
    heads: &LatentHeads,
    formats: [&dyn Format; 2],
) -> usize {
    let rows = tokens.saturating_mul(heads.shape.heads);
    let [keys, values] = formats;
    let of_keys = grouped_words(keys, isa, rows, heads.keys.cols);
    of_keys.max(grouped_words(values, isa, rows, heads.values.cols))
}

/// Words of lists that the products of as many heads take.
pub(crate) fn list_words(heads: usize) -> usize {
    2 * (heads + 1)
}
