//! A model without planner and server: windows of tokens in, logits out.

use anyhow::ensure;
use lockstep_backend::{Backend as _, Batch, Row};
use lockstep_backend_cpu::{CpuBackend, CpuKvCache};
use lockstep_collective::Single;
use lockstep_model::{ForwardLimits, Transformer};
use lockstep_tp_worker::worker::{WorkerLimits, cpu_backend};
use lockstep_types::EngineConfig;

use super::score::Predictions;

/// Rows of logits computed at once.
const BLOCK_ROWS: usize = 64;

/// A loaded model with a cache of one window.
pub struct Model {
    backend: CpuBackend,
    transformer: Transformer<CpuBackend>,
    cache: CpuKvCache,
    page_size: usize,
}

impl Model {
    /// Loads `config`'s model on this process's threads, for windows of up to
    /// `window` tokens.
    pub fn load(config: &EngineConfig, window: usize) -> anyhow::Result<Self> {
        ensure!(
            config.parallel.tp_size == 1,
            "one rank reads the text: leave tensor parallelism out"
        );
        let mut backend = cpu_backend(config, None, Box::new(Single::new()))?;
        let limits = ForwardLimits {
            max_tokens: window,
            positions: window,
            logit_block_rows: BLOCK_ROWS,
        };
        let transformer = Transformer::load(&mut backend, &config.model, limits, &mut |_| {})?;
        let page_size = config.kv.page_size;
        let shape = transformer.kv_shape(
            window.div_ceil(page_size),
            page_size,
            WorkerLimits::new(config).kv_dtype,
        );
        let cache = backend.kv_cache(&shape)?;
        Ok(Self {
            backend,
            transformer,
            cache,
            page_size,
        })
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.transformer.weight_bytes(&self.backend)
    }

    /// What the model predicts after every token of every window but the last.
    pub fn read(&mut self, windows: &[Vec<u32>]) -> anyhow::Result<Predictions> {
        let vocab = self.transformer.model().vocab_size;
        let mut predictions = Predictions::new(vocab);
        for window in windows {
            let (Some((_, inputs)), Some((_, next))) = (window.split_last(), window.split_first())
            else {
                continue;
            };
            let positions: Vec<u32> = (0..inputs.len() as u32).collect();
            let pages: Vec<u32> = (0..inputs.len().div_ceil(self.page_size) as u32).collect();
            let row = Row {
                start: 0,
                q_len: inputs.len() as u32,
                kv_len: 0,
                pages_start: 0,
                mask: None,
            };
            let batch = Batch {
                tokens: inputs,
                positions: &positions,
                cells: &positions,
                rows: &[row],
                pages: &pages,
                masks: &[],
                logit_tokens: &positions,
            };
            let (backend, cache) = (&mut self.backend, &mut self.cache);
            self.transformer
                .forward(backend, cache, &batch, &mut |block| {
                    let next = &next[block.first..];
                    for (logits, &token) in block.logits.chunks_exact(vocab).zip(next) {
                        predictions.add(logits, token);
                    }
                })?;
        }
        Ok(predictions)
    }
}
