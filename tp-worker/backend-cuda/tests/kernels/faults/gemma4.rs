//! Faults in what Gemma 4's small models and its mixture need of kernels.

use lockstep_backend::AttentionShape;

use super::{EXPERTS, watched};

const READERS: &str = "faults::gemma4::readers_are_watched";
const JOINS: &str = "blocks::norms_of_two_outputs_are_added";

/// Faults as in [`super::FAULTS`].
pub(super) const FAULTS: [(&str, &str, &str); 5] = [
    (
        "queries with keys and values behind them",
        "s/width = a.query_stride/width = (size_t)a.kv_heads * (GROUP + 2) * HEAD_DIM/",
        READERS,
    ),
    (
        "factors of weights are forgotten",
        "s/a.scales ? __fmul_rn(scaled, out.i.) : scaled/scaled/",
        EXPERTS,
    ),
    (
        "factors of other experts",
        "s/scales.at. = a.scales.e.;/scales[at] = a.scales[at];/",
        EXPERTS,
    ),
    (
        "the sum of the other output's squares",
        "s/block_sum(of_y) . width/block_sum(of_x) \\/ width/",
        JOINS,
    ),
    (
        "one weight for both outputs",
        "s/y_scale), a.of_y.i./y_scale), a.of_x[i]/",
        JOINS,
    ),
];

#[test]
#[ignore = "a process of its own, which another test starts"]
fn readers_are_watched() {
    watched(&AttentionShape {
        reads_only: true,
        ..AttentionShape::dense(3, 1, 24, 0.2)
    });
}
