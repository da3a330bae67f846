//! Sizes a worker is set up for, from the configuration.

use lockstep_types::{EngineConfig, KvCacheDtype, StepLimits};

use super::WorkerError;

/// The most a plan may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Sizes of the largest step: as many slots as it has rows.
    pub step: StepLimits,
    /// Pages of the cache.
    pub pages: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Token ids.
    pub vocab: usize,
    /// Type of cached keys and values.
    pub kv_dtype: KvCacheDtype,
}

/// Shared memory that a group takes at most: a container's /dev/shm has 64 MiB
/// unless it is given more.
const EXCHANGE_BYTES: usize = 32 << 20;
/// Elements per buffer, whatever else: 256 KiB.
const EXCHANGE_ELEMENTS: usize = 64 << 10;

impl WorkerLimits {
    /// The limits of `config`.
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            step: config.step_limits(),
            pages: config.kv.num_pages,
            page_size: config.kv.page_size,
            vocab: config.model.vocab_size,
            kv_dtype: config.kv.dtype,
        }
    }

    /// Checks that cache cells and table entries can be numbered in 32 bits.
    pub(super) fn check(&self) -> Result<(), WorkerError> {
        let cells = self.pages.saturating_mul(self.page_size);
        let entries = self.step.requests.saturating_mul(self.table_width());
        for (what, count, remedy) in [
            ("cache cells", cells, "--max-total-tokens"),
            ("page table entries", entries, "--max-running-requests"),
        ] {
            if count > u32::MAX as usize {
                return Err(WorkerError::TooMany {
                    what,
                    count,
                    remedy,
                });
            }
        }
        Ok(())
    }

    /// Entries of one row of the request-to-page table.
    pub fn table_width(&self) -> usize {
        self.step.positions.div_ceil(self.page_size) + 1
    }

    /// Elements of the buffers through which `config`'s ranks exchange their
    /// parts: the activations of a whole step of all DP ranks, where the shared memory
    /// that two buffers per rank take, in each of its groups, stays small.
    pub fn exchange_elements(&self, config: &EngineConfig) -> usize {
        let parallel = &config.parallel;
        let tokens = self.step.tokens.saturating_mul(parallel.dp_size);
        let step = tokens.saturating_mul(config.model.hidden_size);
        // The ranks of a DP rank exchange through buffers of their own, of the same size.
        let groups = match parallel.dp_size > 1 && parallel.attn_tp_size() > 1 {
            true => 2,
            false => 1,
        };
        let buffers = 2 * groups * parallel.tp_size.max(1);
        let most = EXCHANGE_BYTES / (buffers * size_of::<f32>());
        step.min(most).max(EXCHANGE_ELEMENTS)
    }
}
