//! A model without planner and server: windows of tokens in, logits out.

use lockstep_backend::{Axis, Backend, Batch, Row, RowState};
use lockstep_collective::Single;
use lockstep_devices::{Device, DeviceOptions, OnDevice, Registry};
use lockstep_model::{ForwardLimits, LoadOptions, ModelCache, Transformer};
use lockstep_speculation::DrafterRegistry;
use lockstep_tp_worker::worker::WorkerLimits;
use lockstep_types::{EngineConfig, StateLimits};

use super::score::Predictions;

/// States and records that recurrent layers need: windows are read one after another, and none is
/// verified.
const STATES: StateLimits = StateLimits {
    states: 1,
    records: 1,
    nodes: 1,
};
/// Rows of logits computed at once.
const BLOCK_ROWS: usize = 64;

/// Results of reading a text.
pub struct Reading {
    /// Predictions after every token of every window but the last.
    pub predictions: Predictions,
    /// Bytes of packed weights.
    pub weight_bytes: usize,
}

/// Products of a model that reads a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// Products as a server has them.
    Served,
    /// Products of the numbers that the weights stand for, in f32, with inputs that are not rounded.
    Dequantized,
}

/// Reads `windows`, of up to `window` tokens each, with `config`'s model, on this process's
/// threads.
///
/// # Errors
/// Fails when the model can't be loaded or has more than one rank, and the errors of the device.
pub fn read(
    config: &EngineConfig,
    products: Products,
    window: usize,
    windows: &[Vec<u32>],
) -> anyhow::Result<Reading> {
    let text = Text {
        config,
        products,
        window,
        windows,
    };
    Registry::empty().run(config.device.kind, text)
}

/// The text, and the configuration of the model that reads it.
struct Text<'a> {
    config: &'a EngineConfig,
    products: Products,
    window: usize,
    windows: &'a [Vec<u32>],
}

impl OnDevice for Text<'_> {
    type Output = anyhow::Result<Reading>;

    fn run<B: Device>(self, _drafters: &DrafterRegistry<B>) -> Self::Output {
        let mut model = Model::<B>::load(self.config, self.products, self.window)?;
        Ok(Reading {
            predictions: model.read(self.windows)?,
            weight_bytes: model.transformer.weight_bytes(&model.backend),
        })
    }
}

/// A loaded model with a cache of one window.
struct Model<B: Backend> {
    backend: B,
    transformer: Transformer<B>,
    cache: ModelCache<B>,
    page_size: usize,
}

impl<B: Device> Model<B> {
    fn load(config: &EngineConfig, products: Products, window: usize) -> anyhow::Result<Self> {
        require!(
            config.parallel.tp_size == 1,
            "one rank reads the text: leave tensor parallelism out"
        );
        let mut backend = B::open(&DeviceOptions::new(config), Box::new(Single::new()))?;
        if products == Products::Dequantized {
            backend.dequantize_weights()?;
        }
        let page_size = config.kv.page_size;
        let limits = ForwardLimits {
            max_tokens: window,
            requests: 1,
            positions: window,
            groups: 1,
            page_size,
            tree_nodes: 1,
            // A row with a state may replay something, though none does here.
            replays: usize::from(config.model.has_states()),
            logit_block_rows: BLOCK_ROWS,
            max_commit: 0,
        };
        let transformer = Transformer::load(
            &mut backend,
            &config.model,
            LoadOptions::new(Axis::World, limits),
            &mut |_| {},
        )?;
        let mut cache = transformer.kv_cache(
            &mut backend,
            window.div_ceil(page_size),
            page_size,
            WorkerLimits::new(config).kv_dtype,
        )?;
        transformer.allocate_states(&mut backend, &mut cache, STATES)?;
        Ok(Self {
            backend,
            transformer,
            cache,
            page_size,
        })
    }

    fn read(&mut self, windows: &[Vec<u32>]) -> anyhow::Result<Predictions> {
        let model = self.transformer.model();
        let (vocab, recurrent) = (model.vocab_size, model.has_states());
        // Every window begins a text.
        let state = RowState {
            fresh: true,
            commits: true,
            ..RowState::default()
        };
        let states = if recurrent { &[state][..] } else { &[] };
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
                logit_tokens: &positions,
                states,
                ..Batch::default()
            };
            let (backend, cache) = (&mut self.backend, &mut self.cache);
            self.transformer
                .forward(backend, cache, &batch, None, &mut |block| {
                    let next = &next[block.first..];
                    for (logits, &token) in block.logits.chunks_exact(vocab).zip(next) {
                        predictions.add(logits, token);
                    }
                })?;
        }
        Ok(predictions)
    }
}
