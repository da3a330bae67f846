//! Parameters of kernels, laid out as the structures with the same names in `latent.cu`. Addresses
//! are the device's.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Latents {
    pub query: u64,
    pub cell: u64,
    pub qkv: u64,
    pub cells: u64,
    pub norm: u64,
    pub cos: u64,
    pub sin: u64,
    pub query_scales: u64,
    pub batch: u64,
    pub heads: u32,
    pub nope: u32,
    pub rotated: u32,
    pub latent: u32,
    pub most: u32,
    pub positions: u32,
    pub cell_count: u32,
    pub group: u32,
    pub eps: f32,
    pub pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct HeadProduct {
    pub x: u64,
    pub w: u64,
    pub out: u64,
    pub scales: u64,
    pub batch: u64,
    pub x_token: u32,
    pub x_head: u32,
    pub out_token: u32,
    pub out_head: u32,
    pub outputs: u32,
    pub inputs: u32,
    pub most: u32,
    pub positions: u32,
    pub aligned: u32,
    pub to_cached: u32,
}
