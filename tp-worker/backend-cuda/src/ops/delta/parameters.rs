//! Parameters of kernels, laid out as the structure with the same name in `delta.cuh`. Addresses are
//! the device's.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Delta {
    pub projected: u64,
    pub gates: u64,
    pub space: u64,
    pub out: u64,
    pub convolution: u64,
    pub bias: u64,
    pub a_log: u64,
    pub dt_bias: u64,
    pub norm: u64,
    pub skip: u64,
    pub matrices: u64,
    pub columns: u64,
    pub keys: u64,
    pub updates: u64,
    pub raw: u64,
    pub decays: u64,
    pub batch: u64,
    pub tokens: u32,
    pub rows: u32,
    pub key_heads: u32,
    pub value_heads: u32,
    pub states: u32,
    pub records: u32,
    pub nodes: u32,
    pub eps: f32,
}
