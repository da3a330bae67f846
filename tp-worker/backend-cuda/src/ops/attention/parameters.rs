//! Parameters of kernels, laid out as the structures with the same names in `cells.cu` and
//! `attention.cu`. Addresses are the device's.

use bytemuck::{Pod, Zeroable};

use crate::ops::SumsParameter;
use crate::tensors::RowsParameter;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Heads {
    pub sums: SumsParameter,
    pub qkv: u64,
    pub q_norm: u64,
    pub k_norm: u64,
    pub v_norm: u64,
    pub cos: u64,
    pub sin: u64,
    pub query_scales: u64,
    pub keys: u64,
    pub values: u64,
    pub batch: u64,
    pub heads: u32,
    pub kv_heads: u32,
    pub half: u32,
    pub cells: u32,
    pub positions: u32,
    pub most: u32,
    pub eps: f32,
    pub group: u32,
    pub rounds: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CopyCells {
    pub keys: u64,
    pub values: u64,
    pub moves: u64,
    pub rows: RowsParameter,
    pub cells: u32,
    pub cell_units: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CopyAccepted {
    pub keys: u64,
    pub values: u64,
    pub batch: u64,
    pub moves: u64,
    pub counts: u64,
    pub requests: RowsParameter,
    pub most: u32,
    pub layers: u32,
    pub cells: u32,
    pub cell_units: u32,
    pub group: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Plan {
    pub batch: u64,
    pub work: u64,
    pub most_rows: u32,
    pub heads: u32,
    pub split_tiles: u32,
    pub blocks: u32,
    pub wide_blocks: u32,
    pub least_wide: u32,
    pub most_parts: u32,
    pub window: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Attend {
    pub queries: u64,
    pub keys: u64,
    pub values: u64,
    pub batch: u64,
    pub work: u64,
    pub parts: u64,
    pub out: u64,
    pub most_rows: u32,
    pub kv_heads: u32,
    pub cells: u32,
    pub page_size: u32,
    pub scale: f32,
    pub group: u32,
    pub window: u32,
    pub rounded: u32,
    pub softcap: f32,
    pub ahead_bytes: u32,
    pub ahead: u64,
    pub sinks: u64,
    pub query_stride: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Merge {
    pub batch: u64,
    pub work: u64,
    pub parts: u64,
    pub out: u64,
    pub most_rows: u32,
    pub most_tokens: u32,
    pub heads: u32,
    pub window: u32,
    pub sinks: u64,
}
