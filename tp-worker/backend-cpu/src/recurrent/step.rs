//! One token in one tile of a head's matrix.

use crate::multiversion::multiversion;

/// Columns of a tile that are a register, or some.
const LANES: usize = 16;
/// Partial sums of a column over the rows of a tile: row `i` goes to sum `i mod 4`. They are folded
/// by pairs.
const SUMS: usize = 4;

type Lanes = [f32; LANES];

/// Inputs of a token to a tile.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    /// The query, `[key_dim]`.
    pub query: &'a [f32],
    /// The key, `[key_dim]`.
    pub key: &'a [f32],
    /// Values of the tile's columns.
    pub value: &'a [f32],
    /// Strength of the update.
    pub strength: f32,
    /// Factor of what was there before.
    pub decay: f32,
}

multiversion! {
    /// `S ← decay · S`, `update = strength · (value − Sᵀ key)`, `S ← S + key updateᵀ`,
    /// `out = Sᵀ query`, in a tile of 32 columns.
    pub(super) fn step_32(tile: &mut [f32], token: Token<'_>, update: &mut [f32], out: &mut [f32]) {
        step::<2>(tile, token, update, out);
    }
}

multiversion! {
    /// [`step_32`] in a tile of 16 columns.
    pub(super) fn step_16(tile: &mut [f32], token: Token<'_>, update: &mut [f32], out: &mut [f32]) {
        step::<1>(tile, token, update, out);
    }
}

multiversion! {
    /// `S ← decay · S + key valueᵀ`, `out += Sᵀ query`, in a tile of 32 columns. There is no
    /// strength.
    pub(super) fn scan_32(tile: &mut [f32], token: Token<'_>, out: &mut [f32]) {
        scan::<2>(tile, token, out);
    }
}

multiversion! {
    /// [`scan_32`] in a tile of 16 columns.
    pub(super) fn scan_16(tile: &mut [f32], token: Token<'_>, out: &mut [f32]) {
        scan::<1>(tile, token, out);
    }
}

multiversion! {
    /// `S ← decay · S + key updateᵀ` in a tile of 32 columns, with the bits of [`step_32`] and
    /// of [`scan_32`].
    pub(super) fn replay_32(tile: &mut [f32], key: &[f32], decay: f32, update: &[f32]) {
        replay::<2>(tile, key, decay, update);
    }
}

multiversion! {
    /// [`replay_32`] in a tile of 16 columns.
    pub(super) fn replay_16(tile: &mut [f32], key: &[f32], decay: f32, update: &[f32]) {
        replay::<1>(tile, key, decay, update);
    }
}

/// Returns the partial sums folded.
#[inline(always)]
fn folded(sums: &[Lanes; SUMS]) -> Lanes {
    let [a, b, c, d] = sums;
    std::array::from_fn(|lane| (a[lane] + b[lane]) + (c[lane] + d[lane]))
}

/// `N` times 16 columns.
#[inline(always)]
fn step<const N: usize>(tile: &mut [f32], token: Token<'_>, update: &mut [f32], out: &mut [f32]) {
    let Token {
        query,
        key,
        value,
        strength,
        decay,
    } = token;
    let (tile, _) = tile.as_chunks_mut::<LANES>();
    let mut sums = [[[0.0f32; LANES]; SUMS]; N];
    for (rows, keys) in tile.chunks_exact(SUMS * N).zip(key.chunks_exact(SUMS)) {
        for sum in 0..SUMS {
            for part in 0..N {
                let (row, sums) = (&rows[sum * N + part], &mut sums[part][sum]);
                *sums = std::array::from_fn(|at| (row[at] * decay).mul_add(keys[sum], sums[at]));
            }
        }
    }
    let mut updates = [[0.0f32; LANES]; N];
    for part in 0..N {
        let (found, values) = (folded(&sums[part]), &value[part * LANES..][..LANES]);
        updates[part] = std::array::from_fn(|at| strength * (values[at] - found[at]));
        update[part * LANES..][..LANES].copy_from_slice(&updates[part]);
    }
    let sums = moved_on(tile, key, query, decay, &updates);
    for part in 0..N {
        out[part * LANES..][..LANES].copy_from_slice(&folded(&sums[part]));
    }
}

#[inline(always)]
fn scan<const N: usize>(tile: &mut [f32], token: Token<'_>, out: &mut [f32]) {
    let Token {
        query,
        key,
        value,
        decay,
        ..
    } = token;
    let (tile, _) = tile.as_chunks_mut::<LANES>();
    let mut updates = [[0.0f32; LANES]; N];
    for (part, update) in updates.iter_mut().enumerate() {
        update.copy_from_slice(&value[part * LANES..][..LANES]);
    }
    let sums = moved_on(tile, key, query, decay, &updates);
    for part in 0..N {
        let found = folded(&sums[part]);
        let out = out[part * LANES..][..LANES].iter_mut();
        out.zip(found).for_each(|(out, found)| *out += found);
    }
}

/// Decays a tile, adds an update, and returns partial sums of the product with `query`.
#[inline(always)]
fn moved_on<const N: usize>(
    tile: &mut [Lanes],
    key: &[f32],
    query: &[f32],
    decay: f32,
    updates: &[Lanes; N],
) -> [[Lanes; SUMS]; N] {
    let mut sums = [[[0.0f32; LANES]; SUMS]; N];
    let inputs = key.chunks_exact(SUMS).zip(query.chunks_exact(SUMS));
    for (rows, (keys, queries)) in tile.chunks_exact_mut(SUMS * N).zip(inputs) {
        for sum in 0..SUMS {
            for part in 0..N {
                let row = &mut rows[sum * N + part];
                *row = added(row, decay, keys[sum], &updates[part]);
                let sums = &mut sums[part][sum];
                *sums = std::array::from_fn(|at| row[at].mul_add(queries[sum], sums[at]));
            }
        }
    }
    sums
}

#[inline(always)]
fn replay<const N: usize>(tile: &mut [f32], key: &[f32], decay: f32, update: &[f32]) {
    let (tile, _) = tile.as_chunks_mut::<LANES>();
    let (updates, _) = update.as_chunks::<LANES>();
    for (rows, key) in tile.chunks_exact_mut(N).zip(key) {
        for part in 0..N {
            rows[part] = added(&rows[part], decay, *key, &updates[part]);
        }
    }
}

/// A row of a matrix behind a token.
#[inline(always)]
fn added(row: &Lanes, decay: f32, key: f32, update: &Lanes) -> Lanes {
    std::array::from_fn(|at| key.mul_add(update[at], row[at] * decay))
}
