//! Sizes that a worker is set up for, from the configuration.

use lockstep_types::{EngineConfig, KvCacheDtype, KvPages, StateLimits, StepLimits};

use super::WorkerError;

/// The most a plan may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Sizes of the largest step. It has as many slots as rows.
    pub step: StepLimits,
    /// Number of groups of layers with equal caches.
    pub groups: usize,
    /// Numbers of pages of the groups' caches.
    pub pages: KvPages,
    /// Number of tokens of a page.
    pub page_size: usize,
    /// Numbers of recurrent states and of the records of verified nodes.
    pub states: StateLimits,
    /// Number of token ids.
    pub vocab: usize,
    /// Type of cached keys and values.
    pub kv_dtype: KvCacheDtype,
}

/// Most bytes of shared memory that a group takes. The /dev/shm of a container has 64 MiB
/// unless it is given more.
const EXCHANGE_BYTES: usize = 32 << 20;
/// Least number of elements per buffer: 256 KiB.
const EXCHANGE_ELEMENTS: usize = 64 << 10;

impl WorkerLimits {
    /// Returns the limits of `config`.
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            states: config.state_limits(),
            step: config.step_limits(),
            groups: config.model.kv_groups().len().max(1),
            pages: config.kv_pages(),
            page_size: config.kv.page_size,
            vocab: config.model.vocab_size,
            kv_dtype: config.kv.dtype,
        }
    }

    /// Checks that cache cells and table entries can be numbered in 32 bits.
    pub(super) fn check(&self) -> Result<(), WorkerError> {
        let cells = self.pages.full.saturating_mul(self.page_size);
        let entries = self.step.requests.saturating_mul(self.table_width());
        let entries = entries.saturating_mul(self.groups);
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

    /// Returns the number of entries of one row of the request-to-page table.
    pub fn table_width(&self) -> usize {
        self.step.positions.div_ceil(self.page_size) + 1
    }

    /// Returns the number of elements of the buffers through which `config`'s ranks exchange
    /// their parts. A buffer holds the activations of a whole step of all DP ranks, unless the
    /// shared memory would become too large: each rank has two buffers in each of its groups.
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
