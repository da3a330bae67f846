//! Kernels against plain f64 arithmetic, and against themselves in other
//! batches, chunks, page sizes, thread counts and instruction sets.

#![expect(clippy::unwrap_used, reason = "a failure fails the test")]

mod attention;
mod blocks;
mod collectives;
mod crossing;
mod experts;
mod fp8;
mod groups;
mod latent;
mod machine;
mod matmul;
mod moves;
mod mxfp4;
mod pairs;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod permission;
mod quantized;
mod recurrent;
mod rounded;
mod rows;
