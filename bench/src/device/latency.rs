//! Limits that no operation goes below: the time from kernel to kernel, and the speed of the
//! cache.

use lockstep_devices::Device;

use super::kernels::Kernels;
use super::parts::Line;

/// Kernels of a chain: as many as a decode step of a small model has.
const CHAIN: usize = 200;
/// Blocks of a kernel that does nothing.
const BLOCKS: [u32; 2] = [1, 128];
/// Bytes that a GPU's cache holds.
const CACHED: usize = 32 << 20;
/// Times that they are read in one pass.
const READ: usize = 16;

impl<B: Device> Kernels<'_, B> {
    /// Measures a chain of kernels that do nothing, each behind the one before, and reading
    /// the same bytes again and again.
    pub fn latency(&mut self) -> anyhow::Result<()> {
        for blocks in BLOCKS {
            let times = self
                .bench
                .times(CHAIN, |backend, _| backend.launch_empty(blocks))?;
            self.keep(&Line {
                kernel: "empty, behind another".to_owned(),
                size: format!("{CHAIN} in a chain, blocks: {blocks}"),
                times,
                bytes: 0.0,
                operations: 0.0,
            })?;
        }
        let times = self
            .bench
            .times(READ, |backend, _| backend.read_memory(CACHED))?;
        self.keep(&Line {
            kernel: "reading the cache".to_owned(),
            size: format!("{} MiB, {READ} times", CACHED >> 20),
            times,
            bytes: CACHED.min(self.bench.working_set) as f64,
            operations: 0.0,
        })
    }
}
