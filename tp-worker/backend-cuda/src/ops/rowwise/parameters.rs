//! Parameters of kernels, laid out as the structures with the same names in `rows.cu`,
//! `norm.cu` and `elementwise.cu`. Addresses are the device's.

use bytemuck::{Pod, Zeroable};

use crate::ops::{IndicesParameter, SumsParameter};
use crate::tensors::RowsParameter;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Embed {
    pub table: u64,
    pub batch: u64,
    pub out: u64,
    pub first: u32,
    pub table_rows: u32,
    pub width: u32,
    pub most: u32,
    pub scale: f32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CopyRows {
    pub x: u64,
    pub out: u64,
    pub from: IndicesParameter,
    pub to: IndicesParameter,
    pub rows: RowsParameter,
    pub units: u32,
    pub x_stride: u32,
    pub out_stride: u32,
    pub first: u32,
    pub x_rows: u32,
    pub out_rows: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RmsNorm {
    pub x: u64,
    pub weight: u64,
    pub out: u64,
    pub delta: SumsParameter,
    pub rows: RowsParameter,
    pub width: u32,
    pub eps: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SiluMul {
    pub gate_up: SumsParameter,
    pub out: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub activation: u32,
}

/// Largest number of ranks whose columns a launch joins.
pub(super) const JOINED: usize = 31;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct JoinColumns {
    pub parts: u64,
    pub x: u64,
    pub out: u64,
    pub rows: u32,
    pub width: u32,
    pub ranks: u32,
    pub own: u32,
    pub starts: [u32; JOINED + 1],
}
