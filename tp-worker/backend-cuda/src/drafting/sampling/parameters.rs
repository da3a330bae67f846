//! Parameters of kernels, laid out as the structures with the same names in `choose.cu` and
//! `accept.cu`. Addresses are the device's.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Choose {
    pub logits: u64,
    pub batch: u64,
    pub states: u64,
    pub tokens: u64,
    pub first: u32,
    pub most: u32,
    pub vocab: u32,
    pub units: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Mask {
    pub logits: u64,
    pub rows: u64,
    pub masks: u64,
    pub words: u32,
    pub vocab: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Follow {
    pub batch: u64,
    pub words: u64,
    pub moves: u64,
    pub counts: u64,
    pub differs: u64,
    pub most_requests: u32,
    pub most: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Accept {
    pub batch: u64,
    pub tokens: u64,
    pub words: u64,
    pub moves: u64,
    pub counts: u64,
    pub most_requests: u32,
    pub most: u32,
    pub nodes: u32,
    pub pad: u32,
}
