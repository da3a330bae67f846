//! Parameters of the kernels of mixtures, as `route.cu` and `experts.cu` have them.

use bytemuck::{Pod, Zeroable};

use crate::tensors::RowsParameter;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Score {
    pub x: u64,
    pub w: u64,
    pub bias: u64,
    pub out: u64,
    pub rows: RowsParameter,
    pub outputs: u32,
    pub inputs: u32,
    pub aligned: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Route {
    pub scores: u64,
    pub correction: u64,
    pub scales: u64,
    pub experts: u64,
    pub weights: u64,
    pub rows: RowsParameter,
    pub scored: u32,
    pub active: u32,
    pub taken: u32,
    pub first: u32,
    pub held: u32,
    pub sigmoid: u32,
    pub renormalized: u32,
    pub factor: f32,
    pub groups: u32,
    pub chosen_groups: u32,
    pub two_largest: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Sort {
    pub experts: u64,
    pub places: u64,
    pub order: u64,
    pub tiles: u64,
    pub count: u64,
    pub rows: RowsParameter,
    pub taken: u32,
    pub all: u32,
    pub height: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ExpertProduct {
    pub x: u64,
    pub w: u64,
    pub biases: u64,
    pub order: u64,
    pub tiles: u64,
    pub count: u64,
    pub out: u64,
    pub outputs: u32,
    pub inputs: u32,
    pub gated: u32,
    pub aligned: u32,
    pub limit: f32,
    pub alpha: f32,
    pub activated: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Weigh {
    pub products: u64,
    pub weights: u64,
    pub places: u64,
    pub out: u64,
    pub rows: RowsParameter,
    pub width: u32,
    pub taken: u32,
}
