//! Norms over groups of columns, of which a rank may have a part.

use lockstep_backend::{ColumnGroups, RmsNorm};

use crate::isa::Isa;
use crate::norm::{scale_row, squares};
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::tensor::CpuVector;

/// See [`lockstep_backend::Ops::group_square_sums`].
pub(crate) fn square_sums(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    width: usize,
    groups: &ColumnGroups,
    sums: &mut [f32],
) {
    for_rows(pool, sums, groups.count, |rows, part| {
        for (row, sums) in rows.zip(part.chunks_exact_mut(groups.count)) {
            let x = &x[row * width..][..width];
            sums.fill(0.0);
            for (group, columns) in groups.parts(width) {
                sums[group] = squares(isa, &x[columns]);
            }
        }
    });
}

/// See [`lockstep_backend::Ops::group_norm`].
pub(crate) fn norm(
    pool: &mut Pool,
    isa: Isa,
    [x, sums]: [&[f32]; 2],
    groups: &ColumnGroups,
    norm: RmsNorm<'_, CpuVector>,
    out: &mut [f32],
) {
    let width = norm.weight.0.len();
    for_rows(pool, out, width, |rows, part| {
        for (row, out) in rows.zip(part.chunks_exact_mut(width)) {
            out.copy_from_slice(&x[row * width..][..width]);
            let sums = &sums[row * groups.count..][..groups.count];
            for (group, columns) in groups.parts(width) {
                let mean = sums[group] / groups.width as f32;
                let scale = 1.0 / (mean + norm.eps).sqrt();
                let weight = &norm.weight.0[columns.clone()];
                scale_row(isa, &mut out[columns], weight, scale);
            }
        }
    });
}
