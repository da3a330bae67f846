//! Groups of inputs gathered from a panel's columns.

use lockstep_backend::HostMatrix;

use crate::gemm::PANEL;
use crate::quantize::GROUP;

/// A group of inputs of every column of a panel: `[input][column]`.
pub(super) type Group = [[f32; PANEL]; GROUP];

/// Calls `quantize(group, out)` for every step of panel `panel` of `matrix` with the step's
/// part of `out`. Inputs and columns past the matrix's are zero.
pub(super) fn for_groups(
    matrix: &HostMatrix<'_>,
    panel: usize,
    step_words: usize,
    out: &mut [u32],
    quantize: impl Fn(&Group, &mut [u32]),
) {
    let (form, cols) = (matrix.form(), matrix.cols());
    let lanes = PANEL.min(form.rows() - panel * PANEL);
    let mut group: Group = [[0.0; PANEL]; GROUP];
    let mut values = [0.0; GROUP];
    for (step, out) in out.chunks_exact_mut(step_words).enumerate() {
        let from = step * GROUP;
        let to = cols.min(from + GROUP);
        group[to - from..].fill([0.0; PANEL]);
        for lane in 0..lanes {
            let values = &mut values[..to - from];
            form.read(panel * PANEL + lane, from, values);
            for (columns, value) in group.iter_mut().zip(values) {
                columns[lane] = *value;
            }
        }
        quantize(&group, out);
    }
}
