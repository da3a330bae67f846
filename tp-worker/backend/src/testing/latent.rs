//! Latent attention with a key and a value of each head, in f64.

use crate::{LatentShape, RopeTable};

/// Inputs of all tokens of one request, and the weights of a latent attention.
#[derive(Debug, Clone)]
pub struct LatentText {
    /// Heads.
    pub shape: LatentShape,
    /// Queries, `[tokens, query_width]`.
    pub query: Vec<f32>,
    /// Cells before norm and rotation, `[tokens, latent + rotated]`.
    pub cell: Vec<f32>,
    /// Weight of the norm of the latent.
    pub norm: Vec<f32>,
    /// Added to the mean square in this norm.
    pub eps: f32,
    /// Key and value matrix of each head, `[latent, nope]` and `[value, latent]`.
    pub heads: Vec<[Vec<f32>; 2]>,
    /// Angles, and factors of queries, of each token.
    pub rope: RopeTable,
}

impl LatentText {
    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.rope.queries.len()
    }

    /// Computes the output of all tokens, `[tokens, heads · value]`, with a key and a value of each
    /// head.
    pub fn exact(&self) -> Vec<f64> {
        let LatentShape { heads, value, .. } = self.shape;
        let cells = self.cells();
        let mut out = vec![0.0; self.tokens() * heads * value];
        for head in 0..heads {
            let keys = self.keys(head, &cells);
            let values: Vec<_> = self.heads[head][1]
                .chunks(self.shape.latent)
                .map(wide)
                .collect();
            for token in 0..self.tokens() {
                let weights = self.weights(head, token, &keys, &cells);
                let to = &mut out[(token * heads + head) * value..][..value];
                for (weight, [latent, _]) in weights.iter().zip(&cells) {
                    for (to, value) in to.iter_mut().zip(&values) {
                        *to += weight * dot(latent, value);
                    }
                }
            }
        }
        out
    }

    /// Each token's normed latent, and its shared key.
    fn cells(&self) -> Vec<[Vec<f64>; 2]> {
        let LatentShape { latent, .. } = self.shape;
        let cells = self.cell.chunks(self.shape.cell()).enumerate();
        let of_token = |(token, cell): (usize, &[f32])| {
            let own = wide(&cell[..latent]);
            let rms = (dot(&own, &own) / latent as f64 + f64::from(self.eps)).sqrt();
            let weighed = own.iter().zip(&self.norm);
            let normed = weighed.map(|(x, w)| x / rms * f64::from(*w));
            [normed.collect(), self.turned(token, &cell[latent..])]
        };
        cells.map(of_token).collect()
    }

    /// The keys of a head that are not rotated.
    fn keys(&self, head: usize, cells: &[[Vec<f64>; 2]]) -> Vec<Vec<f64>> {
        let (nope, matrix) = (self.shape.nope, &self.heads[head][0]);
        let key = |[latent, _]: &[Vec<f64>; 2]| -> Vec<f64> {
            let column = |at| -> f64 {
                let pairs = latent.iter().enumerate();
                pairs
                    .map(|(i, x)| x * f64::from(matrix[i * nope + at]))
                    .sum()
            };
            (0..nope).map(column).collect()
        };
        cells.iter().map(key).collect()
    }

    /// Weights of the positions up to that of `token`, for a head's query.
    fn weights(
        &self,
        head: usize,
        token: usize,
        keys: &[Vec<f64>],
        cells: &[[Vec<f64>; 2]],
    ) -> Vec<f64> {
        let LatentShape {
            heads,
            nope,
            rotated,
            scale,
            ..
        } = self.shape;
        let row = &self.query[token * self.shape.query_width()..];
        let plain = wide(&row[head * nope..][..nope]);
        let other = self.turned(token, &row[heads * nope + head * rotated..][..rotated]);
        let factor = f64::from(self.rope.queries[token]) * f64::from(scale);
        let score = |at: usize| (dot(&plain, &keys[at]) + dot(&other, &cells[at][1])) * factor;
        let weights: Vec<f64> = (0..=token).map(|at| score(at).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// Rotates the columns of a head at a position.
    fn turned(&self, position: usize, x: &[f32]) -> Vec<f64> {
        let half = self.rope.half;
        let mut out = vec![0.0; x.len()];
        for i in 0..half {
            let at = position * half + i;
            let [cos, sin] = [self.rope.cos[at], self.rope.sin[at]].map(f64::from);
            let [a, b] = [x[i], x[i + half]].map(f64::from);
            (out[i], out[i + half]) = (a * cos - b * sin, b * cos + a * sin);
        }
        out
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
