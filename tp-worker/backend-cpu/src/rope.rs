//! Rotary position embedding (Su et al., arXiv:2104.09864) on half-split pairs.

use lockstep_backend::{AttentionShape, RopeTable};

use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::for_rows;
use crate::pool::Pool;

/// Rotary angles.
pub struct CpuRope(RopeTable);

impl CpuRope {
    pub(crate) fn new(table: RopeTable) -> Self {
        Self(table)
    }

    /// Size in memory.
    pub(crate) fn bytes(&self) -> usize {
        let RopeTable {
            half: _,
            cos,
            sin,
            queries,
        } = &self.0;
        let lists = [cos, sin, queries].into_iter();
        lists.map(|list| size_of_val(list.as_slice())).sum()
    }

    /// Number of pairs of a head.
    pub(crate) fn pairs(&self) -> usize {
        self.0.half
    }

    /// Rotates one head at a position, a half of whose columns pairs with the other.
    pub(crate) fn rotate(&self, isa: Isa, position: u32, head: &mut [f32]) {
        let half = self.0.half;
        let angles = position as usize * half..(position as usize + 1) * half;
        let (cos, sin) = (&self.0.cos[angles.clone()], &self.0.sin[angles]);
        let (low, high) = head.split_at_mut(half);
        rotate(isa, low, &mut high[..half], cos, sin);
    }

    /// Factor of queries at a position, where the table has factors.
    pub(crate) fn query_factor(&self, position: u32) -> Option<f32> {
        self.0.queries.get(position as usize).copied()
    }
}

multiversion! {
    fn rotate(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
        let angles = cos.iter().zip(sin);
        for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// Rotates the query and key heads of every row of `qkv`. Value `i` pairs with
/// `i + table.half`; values past `2 · table.half` are not rotated. Queries are then scaled where
/// the table has factors.
pub(crate) fn rope(
    pool: &mut Pool,
    isa: Isa,
    qkv: &mut [f32],
    shape: &AttentionShape,
    CpuRope(table): &CpuRope,
    positions: &[u32],
) {
    let (width, half) = (shape.qkv_width(), table.half);
    let rotated = (shape.heads + shape.written_heads()) * shape.head_dim;
    for_rows(pool, qkv, width, |rows, part| {
        for (row, position) in part.chunks_exact_mut(width).zip(&positions[rows]) {
            let angles = *position as usize * half..(*position as usize + 1) * half;
            let (cos, sin) = (&table.cos[angles.clone()], &table.sin[angles]);
            for head in row[..rotated].chunks_exact_mut(shape.head_dim) {
                let (low, high) = head.split_at_mut(half);
                rotate(isa, low, &mut high[..half], cos, sin);
            }
            if let Some(factor) = table.queries.get(*position as usize) {
                let queries = &mut row[..shape.heads * shape.head_dim];
                queries.iter_mut().for_each(|value| *value *= factor);
            }
        }
    });
}
