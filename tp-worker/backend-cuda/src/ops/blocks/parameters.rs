//! Parameters of kernels, laid out as the structures with the same names in `blocks.cu`.
//! Addresses are the device's.

use bytemuck::{Pod, Zeroable};

use crate::ops::SumsParameter;
use crate::tensors::RowsParameter;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct EndBlock {
    pub residual: u64,
    pub out: u64,
    pub delta: SumsParameter,
    pub output: u64,
    pub next: u64,
    pub bias: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub output_eps: f32,
    pub next_eps: f32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct JoinNorms {
    pub x: u64,
    pub y: u64,
    pub of_x: u64,
    pub of_y: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub x_eps: f32,
    pub y_eps: f32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SquareSums {
    pub qkv: u64,
    pub sums: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub queries: u32,
    pub keys: u32,
    pub head_dim: u32,
    pub first: u32,
    pub served: u32,
    pub group: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct WholeNorm {
    pub qkv: u64,
    pub sums: u64,
    pub query_weight: u64,
    pub key_weight: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub queries: u32,
    pub keys: u32,
    pub query_width: f32,
    pub key_width: f32,
    pub eps: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Activate {
    pub x: u64,
    pub out: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub activation: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SigmoidGate {
    pub gate: u64,
    pub out: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub whole: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ScaleLogits {
    pub logits: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub divisor: f32,
    pub softcap: f32,
    pub pad: u32,
}
