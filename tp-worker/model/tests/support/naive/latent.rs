//! Latent attention with a key and a value of each head for each position, as it is written in the
//! paper: nothing is absorbed.

use lockstep_backend::{AttendLatent, LatentShape, RopeTable};

use super::arithmetic::{dot, normed, seen};
use super::{Cache, Inputs, OPERAND, SUM, Tensor};

type Op<'a> = AttendLatent<'a, Tensor, Vec<f32>, RopeTable>;

/// Attends as layer `layer` of the cache, whose keys hold cells.
pub fn attend(
    cache: &mut Cache,
    layer: usize,
    [query, cell]: [&Tensor; 2],
    op: &Op<'_>,
    inputs: &Inputs,
    out: &mut Tensor,
) {
    let &LatentShape {
        heads,
        nope,
        rotated,
        latent,
        value,
        scale,
    } = op.shape;
    query.holds(SUM);
    cell.holds(SUM);
    out.holds(OPERAND);
    let width = latent + rotated;
    assert_eq!((query.width, cell.width), (heads * (nope + rotated), width));
    assert_eq!(
        (
            cache.shape.kv_heads,
            cache.shape.latent,
            cache.shape.head_dim
        ),
        (1, Some(latent), width)
    );
    let (cells, pages) = inputs.of_group(cache.shape.group);
    for (token, to) in cells.iter().enumerate() {
        let (low, key) = cell.row(token).split_at(latent);
        let own = &mut cache.keys[layer][*to as usize * width..][..width];
        own[..latent].copy_from_slice(&normed(low, op.norm, op.eps));
        own[latent..].copy_from_slice(&turned(op.rope, inputs.positions[token], key));
    }
    let size = cache.shape.page_size;
    for row in &inputs.rows {
        for new in 0..row.q_len as usize {
            let token = row.start as usize + new;
            let position = inputs.positions[token];
            let factor = op.rope.queries.get(position as usize).unwrap_or(&1.0);
            let seen = seen(row, new, &inputs.masks);
            for head in 0..heads {
                let at = |position: usize| {
                    let page = pages[row.pages_start as usize + position / size];
                    let cell = page as usize * size + position % size;
                    &cache.keys[layer][cell * width..][..width]
                };
                let plain = &query.row(token)[head * nope..][..nope];
                let other = &query.row(token)[heads * nope + head * rotated..][..rotated];
                let other = turned(op.rope, position, other);
                let score = |position: &usize| {
                    let (low, shared) = at(*position).split_at(latent);
                    let key = |column| dot(low, &column_of(&op.keys[head], column));
                    let own: Vec<f32> = (0..nope).map(key).collect();
                    (dot(plain, &own) + dot(&other, shared)) * factor * scale
                };
                let scores: Vec<f32> = seen.iter().map(score).collect();
                let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
                let total: f32 = weights.iter().sum();
                let mut means = vec![0.0; value];
                for (position, weight) in seen.iter().zip(&weights) {
                    let low = &at(*position)[..latent];
                    for (column, mean) in means.iter_mut().enumerate() {
                        *mean += weight / total * dot(low, op.values[head].row(column));
                    }
                }
                out.row_mut(token)[head * value..][..value].copy_from_slice(&means);
            }
        }
    }
}

/// Returns a row of the key matrix, which lies turned around.
fn column_of(keys: &Tensor, column: usize) -> Vec<f32> {
    (0..keys.rows).map(|row| keys.row(row)[column]).collect()
}

fn turned(table: &RopeTable, position: u32, x: &[f32]) -> Vec<f32> {
    let mut out = x.to_vec();
    for i in 0..table.half {
        let at = position as usize * table.half + i;
        let (cos, sin) = (table.cos[at], table.sin[at]);
        let (a, b) = (x[i], x[i + table.half]);
        (out[i], out[i + table.half]) = (a * cos - b * sin, b * cos + a * sin);
    }
    out
}
