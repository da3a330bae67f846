//! Pages of a model's groups of layers.

use crate::{EngineConfig, KvSpec, ModelConfig, StepLimits, WindowNeed};

/// Numbers of pages in the caches of a model's groups of layers, page 0 included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvPages {
    /// Pages of each group that keeps all positions.
    pub full: usize,
    /// Pages of each group with a sliding window, at most as many.
    pub window: usize,
}

/// Equally many pages for all groups.
impl From<usize> for KvPages {
    fn from(pages: usize) -> Self {
        Self {
            full: pages,
            window: pages,
        }
    }
}

impl KvPages {
    /// Returns the pages of a group with such caches.
    pub fn of(self, spec: KvSpec) -> usize {
        match spec {
            KvSpec::Full { .. } | KvSpec::Latent { .. } => self.full,
            KvSpec::Window { .. } => self.window,
        }
    }

    /// Returns the bytes of caches of `page_size` tokens a page. A token takes `full` bytes in
    /// all groups that keep all positions together, and `window` bytes in the others.
    pub fn bytes(self, page_size: usize, full: u64, window: u64) -> u64 {
        let of = |pages: usize, token: u64| {
            let tokens = (pages as u64).saturating_mul(page_size as u64);
            tokens.saturating_mul(token)
        };
        of(self.full, full).saturating_add(of(self.window, window))
    }
}

impl ModelConfig {
    /// Returns the windows of the groups of layers that have one, in the groups' order.
    pub fn kv_windows(&self) -> Vec<usize> {
        let groups = self.kv_groups().into_iter();
        groups.filter_map(|group| group.spec.window()).collect()
    }
}

impl StepLimits {
    /// Returns the pages that `model`'s groups with windows need in a DP rank; `None` if it has
    /// no such group. `reserve` are the tokens beyond the committed ones that decode steps may
    /// write for one request.
    pub fn window_need(
        &self,
        model: &ModelConfig,
        page_size: usize,
        reserve: usize,
        overlap: bool,
    ) -> Option<WindowNeed> {
        let verified = self.requests.saturating_mul(self.verified);
        Some(WindowNeed {
            window: model.kv_windows().into_iter().max()?,
            page_size,
            requests: self.requests,
            prompt_tokens: self.tokens.saturating_sub(verified),
            steps_in_flight: if overlap { 2 } else { 1 },
            reserve,
        })
    }
}

impl EngineConfig {
    /// Returns the pages of each group of layers on a rank.
    pub fn kv_pages(&self) -> KvPages {
        let full = self.kv.num_pages;
        let overlap = self.schedule.overlap;
        let reserve = self.speculation.reserve().alloc_reserve_per_decode(overlap);
        let limits = self.step_limits();
        let need = limits.window_need(&self.model, self.kv.page_size, reserve as usize, overlap);
        KvPages {
            full,
            window: need.map_or(full, |need| need.pages(full)),
        }
    }
}
