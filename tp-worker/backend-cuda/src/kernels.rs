//! Sources of the kernels, from `kernels/`.

mod waiting;

pub(crate) use waiting::wait;

/// A source file with its headers, compiled in one piece.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// File name, for errors.
    pub name: &'static str,
    /// CUDA C++ text.
    pub text: &'static str,
    /// Names and texts of the headers that the source may include.
    pub headers: &'static [(&'static str, &'static str)],
}

const DEVICE: (&str, &str) = ("device.cuh", include_str!("../kernels/device.cuh"));
const BATCH: (&str, &str) = ("batch.cuh", include_str!("../kernels/batch.cuh"));
const FEW_ROWS_TILES: (&str, &str) = ("few_rows.cuh", include_str!("../kernels/few_rows.cuh"));
const EXPERT_TILES: (&str, &str) = ("experts.cuh", include_str!("../kernels/experts.cuh"));
const MXFP4: (&str, &str) = ("mxfp4.cuh", include_str!("../kernels/mxfp4.cuh"));
const ROUTES: (&str, &str) = ("routes.cuh", include_str!("../kernels/routes.cuh"));
const SUMS: (&str, &str) = ("sums.cuh", include_str!("../kernels/sums.cuh"));
const EXP: (&str, &str) = ("exp.cuh", include_str!("../kernels/exp.cuh"));
const STATES: (&str, &str) = ("states.cuh", include_str!("../kernels/states.cuh"));
const COLUMNS: (&str, &str) = ("columns.cuh", include_str!("../kernels/columns.cuh"));
const DELTA_OPERANDS: (&str, &str) = ("delta.cuh", include_str!("../kernels/delta.cuh"));
const SOFTMAX: (&str, &str) = ("softmax.cuh", include_str!("../kernels/softmax.cuh"));
const TILE: (&str, &str) = ("tile.cuh", include_str!("../kernels/tile.cuh"));
const WORK: (&str, &str) = ("work.cuh", include_str!("../kernels/work.cuh"));
const ATTEND: (&str, &str) = ("attend.cuh", include_str!("../kernels/attend.cuh"));

const TILES: (&str, &str) = ("tiles.cuh", include_str!("../kernels/tiles.cuh"));

const CHOICES: (&str, &str) = ("choices.cuh", include_str!("../kernels/choices.cuh"));
const WEIGHTS: (&str, &str) = ("weights.cuh", include_str!("../kernels/weights.cuh"));

pub(crate) const ROWS: Source = Source {
    name: "rows.cu",
    text: include_str!("../kernels/rows.cu"),
    headers: &[DEVICE, BATCH],
};
pub(crate) const NORM: Source = Source {
    name: "norm.cu",
    text: include_str!("../kernels/norm.cu"),
    headers: &[DEVICE, SUMS],
};
pub(crate) const ELEMENTWISE: Source = Source {
    name: "elementwise.cu",
    text: include_str!("../kernels/elementwise.cu"),
    headers: &[DEVICE, SUMS],
};
pub(crate) const BLOCKS: Source = Source {
    name: "blocks.cu",
    text: include_str!("../kernels/blocks.cu"),
    headers: &[DEVICE, EXP, SUMS],
};
pub(crate) const FEW_ROWS: Source = Source {
    name: "few_rows.cu",
    text: include_str!("../kernels/few_rows.cu"),
    headers: &[DEVICE, SUMS, FEW_ROWS_TILES],
};
pub(crate) const ROUTE: Source = Source {
    name: "route.cu",
    text: include_str!("../kernels/route.cu"),
    headers: &[DEVICE, EXP, ROUTES],
};
pub(crate) const DELTA: Source = Source {
    name: "delta.cu",
    text: include_str!("../kernels/delta.cu"),
    headers: &[DEVICE, EXP, BATCH, STATES, COLUMNS, DELTA_OPERANDS],
};
pub(crate) const MAMBA: Source = Source {
    name: "mamba.cu",
    text: include_str!("../kernels/mamba.cu"),
    headers: &[DEVICE, EXP, BATCH, STATES, COLUMNS, DELTA_OPERANDS],
};
pub(crate) const RECUR: Source = Source {
    name: "recur.cu",
    text: include_str!("../kernels/recur.cu"),
    headers: &[DEVICE, EXP, BATCH, STATES, COLUMNS, DELTA_OPERANDS],
};
pub(crate) const SHORT: Source = Source {
    name: "short.cu",
    text: include_str!("../kernels/short.cu"),
    headers: &[DEVICE, BATCH, STATES, COLUMNS],
};
pub(crate) const STATE_COPIES: Source = Source {
    name: "states.cu",
    text: include_str!("../kernels/states.cu"),
    headers: &[DEVICE],
};
pub(crate) const GROUPS: Source = Source {
    name: "groups.cu",
    text: include_str!("../kernels/groups.cu"),
    headers: &[DEVICE],
};
pub(crate) const EXPERTS: Source = Source {
    name: "experts.cu",
    text: include_str!("../kernels/experts.cu"),
    headers: &[DEVICE, SUMS, FEW_ROWS_TILES, ROUTES, EXPERT_TILES],
};
pub(crate) const EXPERTS_MXFP4: Source = Source {
    name: "experts_mxfp4.cu",
    text: include_str!("../kernels/experts_mxfp4.cu"),
    headers: &[DEVICE, SUMS, FEW_ROWS_TILES, ROUTES, EXPERT_TILES, MXFP4],
};
pub(crate) const CELLS: Source = Source {
    name: "cells.cu",
    text: include_str!("../kernels/cells.cu"),
    headers: &[DEVICE, BATCH, SUMS],
};
pub(crate) const PLAN: Source = Source {
    name: "plan.cu",
    text: include_str!("../kernels/plan.cu"),
    headers: &[DEVICE, BATCH, WORK],
};
pub(crate) const ATTENTION: Source = Source {
    name: "attention.cu",
    text: include_str!("../kernels/attention.cu"),
    headers: &[DEVICE, BATCH, SOFTMAX, TILE, WORK, ATTEND, TILES],
};
pub(crate) const PAIRS: Source = Source {
    name: "pairs.cu",
    text: include_str!("../kernels/pairs.cu"),
    headers: &[DEVICE, BATCH, SOFTMAX, TILE, WORK, ATTEND, TILES],
};
pub(crate) const WIDE: Source = Source {
    name: "wide.cu",
    text: include_str!("../kernels/wide.cu"),
    headers: &[DEVICE, BATCH, SOFTMAX, TILE, WORK, ATTEND],
};
pub(crate) const LATENT: Source = Source {
    name: "latent.cu",
    text: include_str!("../kernels/latent.cu"),
    headers: &[DEVICE, BATCH, SUMS, FEW_ROWS_TILES],
};
pub(crate) const READ: Source = Source {
    name: "read.cu",
    text: include_str!("../kernels/read.cu"),
    headers: &[DEVICE],
};
pub(crate) const EMPTY: Source = Source {
    name: "empty.cu",
    text: include_str!("../kernels/empty.cu"),
    headers: &[DEVICE],
};
pub(crate) const BITS: Source = Source {
    name: "bits.cu",
    text: include_str!("../kernels/bits.cu"),
    headers: &[DEVICE],
};
pub(crate) const RANDOM: Source = Source {
    name: "random.cu",
    text: include_str!("../kernels/random.cu"),
    headers: &[DEVICE],
};
pub(crate) const NOTES: Source = Source {
    name: "notes.cu",
    text: include_str!("../kernels/notes.cu"),
    headers: &[DEVICE],
};
pub(crate) const CHOOSE: Source = Source {
    name: "choose.cu",
    text: include_str!("../kernels/choose.cu"),
    headers: &[DEVICE, BATCH, CHOICES, WEIGHTS],
};
pub(crate) const ACCEPT: Source = Source {
    name: "accept.cu",
    text: include_str!("../kernels/accept.cu"),
    headers: &[DEVICE, BATCH, CHOICES],
};
pub(crate) const CHAIN: Source = Source {
    name: "chain.cu",
    text: include_str!("../kernels/chain.cu"),
    headers: &[DEVICE, BATCH, CHOICES, WEIGHTS],
};
pub(crate) const TREE: Source = Source {
    name: "tree.cu",
    text: include_str!("../kernels/tree.cu"),
    headers: &[DEVICE, BATCH, CHOICES, WEIGHTS],
};
