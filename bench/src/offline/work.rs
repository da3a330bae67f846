//! Work of a model's steps: bytes to read and operations to do.

use std::num::NonZeroUsize;

use lockstep_backend::{DeviceMemory, MatrixRole, MatrixShape, WeightFormat};
use lockstep_devices::{Arithmetic, DeviceOptions, device_memory};
use lockstep_types::{Dtype, EngineConfig, LayerSpec, Mixer, ModelConfig};

use crate::roofline::Work;

/// The facts of a loaded model that its steps' work depends on.
pub struct Model {
    arithmetics: &'static [Arithmetic],
    /// Bytes of the weights that a step of many tokens reads.
    weights: f64,
    /// The experts of each layer that has some.
    experts: Vec<Experts>,
    /// Parameters of the matrices that every token is multiplied with.
    layers: f64,
    /// Operations of a token in recurrences.
    recurrences: f64,
    /// Parameters of the output head, for tokens whose logits are wanted.
    head: f64,
    /// Attention of all layers.
    attention: Vec<Attention>,
    /// Bytes of a request's state in all recurrent layers, which a step reads and writes.
    state: f64,
    /// The most prompt tokens of a step.
    chunk: usize,
}

/// Experts of a layer.
#[derive(Clone, Copy)]
struct Experts {
    /// Bytes of all of them.
    bytes: f64,
    /// Share of them that a token does not go through.
    left: f64,
}

/// Attention of a layer.
struct Attention {
    /// Most positions that a query sees.
    window: usize,
    /// Bytes of keys and values of a token, over all ranks.
    kv: f64,
    /// Operations of a query with a key and its value.
    pair: f64,
}

impl Attention {
    /// Bytes of keys and values that come from the cache, where each of `chunks` begins behind
    /// so many positions.
    fn cached(&self, chunks: impl Iterator<Item = usize>) -> f64 {
        let seen = chunks.map(|before| before.min(self.window - 1));
        self.kv * seen.sum::<usize>() as f64
    }

    /// Pairs of `tokens` queries from the first position on, and the positions that they see.
    fn pairs(&self, tokens: usize) -> f64 {
        let growing = tokens.min(self.window) as f64;
        let full = tokens.saturating_sub(self.window) as f64;
        growing * (growing + 1.0) / 2.0 + full * growing
    }

    /// Positions that queries see, where each is behind so many positions, its own included.
    fn seen(&self, positions: impl Iterator<Item = usize>) -> f64 {
        let seen = positions.map(|positions| positions.min(self.window));
        seen.map(|positions| positions as f64).sum()
    }
}

impl Model {
    /// The model of an engine's configuration and its packed weights' bytes.
    pub fn new(config: &EngineConfig, weight_bytes: usize) -> Self {
        let model = &config.model;
        // Steps read few rows of an embedding table that is not the head too. With several
        // DP ranks every rank has a table.
        let table = model.vocab_size * model.hidden_size;
        let parallel = &config.parallel;
        let tables = match (parallel.dp_size, model.tie_word_embeddings) {
            (1, true) => 0,
            (1, false) => 1,
            _ => parallel.tp_size,
        };
        let memory = device_memory(&DeviceOptions::new(config));
        let bytes = memory.matrix_bytes(MatrixShape {
            rows: model.vocab_size,
            cols: model.hidden_size,
            role: MatrixRole::Vocabulary,
            format: WeightFormat::of(model.quantization, MatrixRole::Vocabulary),
        });
        // A table of per-layer embeddings is looked up alone, too.
        let per_layer = model.per_layer.as_ref().map_or(0, |own| {
            let bytes = memory.matrix_bytes(MatrixShape {
                rows: model.vocab_size,
                cols: own.width * model.layers.len(),
                role: MatrixRole::Vocabulary,
                format: WeightFormat::of(model.quantization, MatrixRole::Vocabulary),
            });
            bytes as usize
                * if parallel.dp_size == 1 {
                    1
                } else {
                    parallel.tp_size
                }
        });
        let looked_up = tables * bytes as usize + per_layer;
        let ranks = parallel.attn_tp_size();
        let row_bytes = |columns| config.kv.dtype.row_bytes(columns);
        // Copies on ranks that share heads included.
        let cached = |mixer: &Mixer| match mixer {
            Mixer::Attention(own) => {
                2 * row_bytes(own.head_dim) * own.kv_heads_per_rank(ranks) * ranks
            }
            Mixer::LatentAttention(own) => row_bytes(own.latent + own.rotated) * ranks,
            Mixer::GatedDelta(_) | Mixer::Mamba2(_) | Mixer::ShortConvolution(_) | Mixer::None => 0,
        };
        let window = |mixer: &Mixer| match mixer {
            Mixer::Attention(own) => own.window,
            _ => None,
        };
        let attention = |layer: &LayerSpec| Attention {
            window: window(&layer.mixer).map_or(usize::MAX, NonZeroUsize::get),
            kv: cached(&layer.mixer) as f64,
            pair: layer.mixer.operations_per_pair() as f64,
        };
        Self {
            arithmetics: arithmetics(config),
            weights: weight_bytes.saturating_sub(looked_up) as f64,
            experts: experts(model, memory.as_ref()),
            layers: parameters(model) as f64,
            recurrences: recurrences(model) as f64,
            head: table as f64,
            attention: model.layers.iter().map(attention).collect(),
            state: model.state_and_record_bytes(1)[0] as f64,
            chunk: config
                .schedule
                .of_dp_rank(parallel.dp_size)
                .chunked_prefill_size
                .unwrap_or(usize::MAX)
                .max(1),
        }
    }

    /// Arithmetic that the matrix products may use.
    pub fn arithmetics(&self) -> &'static [Arithmetic] {
        self.arithmetics
    }

    /// Bytes of weights that a step of `tokens` tokens reads. Of experts these are the expected
    /// bytes, if each token takes its experts by chance.
    pub fn weights_read(&self, tokens: usize) -> f64 {
        let left = |experts: &Experts| experts.bytes * experts.left.powf(tokens as f64);
        self.weights - self.experts.iter().map(left).sum::<f64>()
    }

    /// Returns true if the weights are too large for most of them to be found in a cache.
    /// `working_set` is the number of bytes that measurements of memory go through.
    pub fn exceeds(&self, working_set: usize) -> bool {
        self.weights >= working_set as f64 / 2.0
    }

    /// Work of taking in a prompt and putting out its first token. Weights are read once per
    /// chunk, and each token attends to the tokens before it. Operations of recurrences count like
    /// those of products, which no device does more slowly, so that the share is never too high.
    pub fn prefill(&self, tokens: usize) -> Work {
        let weights = (0..tokens)
            .step_by(self.chunk)
            .map(|start| self.weights_read(self.chunk.min(tokens - start)));
        let weights: f64 = weights.sum();
        // Later chunks read the keys and values of earlier ones from the cache.
        let starts = (0..tokens).step_by(self.chunk.min(tokens.max(1)));
        let layers = self.attention.iter();
        let cached: f64 = layers
            .clone()
            .map(|layer| layer.cached(starts.clone()))
            .sum();
        let pairs: f64 = layers.map(|layer| layer.pair * layer.pairs(tokens)).sum();
        let states = 2.0 * self.state * starts.count() as f64;
        Work {
            bytes: weights + cached + states,
            operations: 2.0 * (self.layers * tokens as f64 + self.head)
                + self.recurrences * tokens as f64
                + pairs,
        }
    }

    /// Work of `steps` decode steps of `batch` requests that begin with `context` tokens of
    /// prompt and the first token of output.
    pub fn decode(&self, batch: usize, context: usize, steps: usize) -> Work {
        let weights = self.weights_read(batch);
        let (batch, rounds) = (batch as f64, steps as f64);
        // The new token's own keys are among the keys that its query sees.
        let positions = (1..=steps).map(|step| context + step);
        let (mut read, mut scored) = (0.0, 0.0);
        for layer in &self.attention {
            let seen = layer.seen(positions.clone());
            (read, scored) = (read + seen * layer.kv, scored + seen * layer.pair);
        }
        Work {
            bytes: rounds * (weights + batch * 2.0 * self.state) + batch * read,
            operations: batch * (rounds * self.of_token() + scored),
        }
    }

    /// Operations of a token whose logits are wanted, without attention.
    fn of_token(&self) -> f64 {
        2.0 * (self.layers + self.head) + self.recurrences
    }
}

/// The experts of a model's layers.
fn experts(model: &ModelConfig, memory: &dyn DeviceMemory) -> Vec<Experts> {
    let format = model.weight_format(MatrixRole::Projection);
    let bytes = |rows, cols| {
        let role = MatrixRole::Projection;
        memory.matrix_bytes(MatrixShape {
            rows,
            cols,
            role,
            format,
        })
    };
    let of_layer = |layer: &LayerSpec| {
        let spec = layer.mlp.experts()?;
        let (hidden, width) = (model.hidden_size, spec.width);
        let each = bytes(spec.gate.projections() * width, hidden) + bytes(hidden, width);
        // Each row goes through the shared ones, so they are no part of it.
        Some(Experts {
            bytes: spec.count as f64 * each as f64,
            left: 1.0 - spec.active as f64 / spec.count as f64,
        })
    };
    model.layers.iter().filter_map(of_layer).collect()
}

fn arithmetics(config: &EngineConfig) -> &'static [Arithmetic] {
    match (
        config.model.weight_format(MatrixRole::Projection),
        config.dtype,
    ) {
        (WeightFormat::Int8 | WeightFormat::Int4 | WeightFormat::Groups(_), _) => {
            &[Arithmetic::Int8Dot]
        }
        (WeightFormat::Float | WeightFormat::Mxfp4 | WeightFormat::Fp8 { .. }, Dtype::Bfloat16) => {
            &[Arithmetic::Bf16Dot, Arithmetic::F32Fma]
        }
        (WeightFormat::Float | WeightFormat::Mxfp4 | WeightFormat::Fp8 { .. }, Dtype::Float32)
        | (WeightFormat::Float32, _) => &[Arithmetic::F32Fma],
    }
}

/// Operations of a token in the recurrences of all layers.
fn recurrences(model: &ModelConfig) -> usize {
    let mixers = model.layers.iter().map(|layer| &layer.mixer);
    mixers.map(Mixer::recurrence_operations).sum()
}

/// Parameters of all layers that a token is multiplied with.
fn parameters(model: &ModelConfig) -> usize {
    let hidden = model.hidden_size;
    let of = |layer: &LayerSpec| layer.mixer.elements(hidden) + hidden * layer.mlp.active_rows();
    model.layers.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recurrences_count_each_tokens_operations_and_each_steps_states() {
        let model = Model {
            arithmetics: &[Arithmetic::F32Fma],
            weights: 500.0,
            experts: Vec::new(),
            layers: 400.0,
            recurrences: 70.0,
            head: 50.0,
            attention: Vec::new(),
            state: 5.0,
            chunk: 4,
        };
        let steps = Work {
            bytes: 3.0 * (500.0 + 2.0 * 10.0),
            operations: 2.0 * 3.0 * (2.0 * 450.0 + 70.0),
        };
        assert_eq!(model.decode(2, 0, 3), steps);
        let prompt = Work {
            bytes: 3.0 * (500.0 + 10.0),
            operations: 9.0 * (2.0 * 400.0 + 70.0) + 2.0 * 50.0,
        };
        assert_eq!(model.prefill(9), prompt);
    }

    #[test]
    fn work_is_counted_from_the_shapes() {
        let model = Model {
            arithmetics: &[Arithmetic::F32Fma],
            weights: 1000.0,
            experts: Vec::new(),
            layers: 400.0,
            recurrences: 0.0,
            head: 50.0,
            attention: vec![Attention {
                window: usize::MAX,
                kv: 8.0,
                pair: 16.0,
            }],
            state: 0.0,
            chunk: 4,
        };
        // One chunk; pairs 1 + 2 + 3.
        let whole = Work {
            bytes: 1000.0,
            operations: 2.0 * (1200.0 + 50.0) + 16.0 * 6.0,
        };
        assert_eq!(model.prefill(3), whole);
        // Three chunks of at most 4, over 0, 4 and 8 cached tokens; 45 pairs.
        let chunks = Work {
            bytes: 3000.0 + 8.0 * 12.0,
            operations: 2.0 * (3600.0 + 50.0) + 16.0 * 45.0,
        };
        assert_eq!(model.prefill(9), chunks);
        // Two requests, steps over 11 and 12 positions.
        let steps = Work {
            bytes: 2.0 * 1000.0 + 2.0 * 23.0 * 8.0,
            operations: 2.0 * (2.0 * 2.0 * 450.0 + 23.0 * 16.0),
        };
        assert_eq!(model.decode(2, 10, 2), steps);
        let windowed = Model {
            attention: vec![Attention {
                window: 3,
                kv: 8.0,
                pair: 16.0,
            }],
            ..model
        };
        // Chunks over 0, 2 and 2 cached tokens in the window; pairs 1 + 2 + 7 times 3.
        let chunks = Work {
            bytes: 3000.0 + 8.0 * 4.0,
            operations: 2.0 * (3600.0 + 50.0) + 16.0 * 24.0,
        };
        assert_eq!(windowed.prefill(9), chunks);
        assert_eq!(
            windowed.decode(2, 10, 2).bytes,
            2.0 * 1000.0 + 2.0 * 6.0 * 8.0
        );
        let unchunked = Model {
            chunk: usize::MAX,
            ..windowed
        };
        assert_eq!(unchunked.prefill(9).bytes, 1000.0);
        assert!(unchunked.exceeds(2000) && !unchunked.exceeds(2001));
        // One token reads a quarter of the experts, two read 7/16.
        let mixture = Model {
            experts: vec![Experts {
                bytes: 800.0,
                left: 0.75,
            }],
            ..unchunked
        };
        assert_eq!(mixture.decode(1, 0, 1).bytes, 1000.0 - 600.0 + 8.0);
        assert_eq!(mixture.decode(2, 0, 3).bytes, 3.0 * 550.0 + 2.0 * 6.0 * 8.0);
        assert_eq!(mixture.prefill(2).bytes, 550.0);
    }
}
