//! EAGLE heads that remember texts inexactly, so that their target accepts some drafts and
//! rejects others.

use std::{fs, path::Path};

use tempfile::TempDir;

/// Sizes of the target.
const HIDDEN: usize = 64;
const HEADS: [usize; 2] = [4, 2];
const HEAD_DIM: usize = 32;
const MLP: usize = 80;
const VOCAB: usize = 331;
/// Weight of a head's other computations beside what it remembers.
const LITTLE: f32 = 0.05;

/// A checkpoint under construction.
#[derive(Default)]
struct Checkpoint {
    header: serde_json::Map<String, serde_json::Value>,
    bytes: Vec<u8>,
    state: u64,
}

impl Checkpoint {
    fn push(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let tensor = serde_json::json!({
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [begin, self.bytes.len()],
        });
        self.header.insert(name.to_owned(), tensor);
    }

    /// Returns random numbers in rows of about unit length (splitmix64).
    fn numbers(&mut self, shape: &[usize]) -> Vec<f32> {
        let scale = match shape {
            [_, columns] => (3.0 / *columns as f32).sqrt(),
            _ => 1.0,
        };
        let mut number = || {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        (0..shape.iter().product()).map(|_| number()).collect()
    }

    fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.push(name, "F32", shape, &bytes);
    }

    fn random(&mut self, name: &str, shape: &[usize]) {
        let mut values = self.numbers(shape);
        if name.contains("o_proj") || name.contains("down_proj") {
            values.iter_mut().for_each(|x| *x *= LITTLE);
        }
        self.floats(name, shape, &values);
    }

    fn layer(&mut self, prefix: &str, inputs: usize, heads: [usize; 2]) {
        let [heads, kv] = heads.map(|heads| heads * HEAD_DIM);
        for (name, shape) in [
            ("self_attn.q_proj.weight", &[heads, inputs][..]),
            ("self_attn.k_proj.weight", &[kv, inputs]),
            ("self_attn.v_proj.weight", &[kv, inputs]),
            ("self_attn.o_proj.weight", &[HIDDEN, heads]),
            ("post_attention_layernorm.weight", &[HIDDEN]),
            ("mlp.gate_proj.weight", &[MLP, HIDDEN]),
            ("mlp.up_proj.weight", &[MLP, HIDDEN]),
            ("mlp.down_proj.weight", &[HIDDEN, MLP]),
        ] {
            self.random(&format!("{prefix}.{name}"), shape);
        }
    }

    fn write(&self, config: &serde_json::Value) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let header = serde_json::to_vec(&self.header).unwrap();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend_from_slice(&self.bytes);
        fs::write(folder.path().join("model.safetensors"), file).unwrap();
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        folder
    }
}

fn config([heads, kv]: [usize; 2]) -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": HEAD_DIM,
        "intermediate_size": MLP,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": false,
        "bias": false,
    })
}

/// Returns the target's embedding, `[vocab, hidden]`, with every row scaled to unit square
/// length.
fn embedding(target: &Path) -> Vec<f32> {
    let file = fs::read(target.join("model.safetensors")).unwrap();
    let (len, rest) = file.split_at(8);
    let len = u64::from_le_bytes(len.try_into().unwrap()) as usize;
    let (header, data) = rest.split_at(len);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let table = &header["model.embed_tokens.weight"];
    assert_eq!(table["dtype"], "BF16");
    let at = |number: usize| table["data_offsets"][number].as_u64().unwrap() as usize;
    let values = data[at(0)..at(1)].as_chunks::<2>().0.iter();
    let value = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    let mut values: Vec<f32> = values.map(value).collect();
    for row in values.chunks_exact_mut(HIDDEN) {
        let length = row.iter().map(|x| x * x).sum::<f32>().max(1e-9);
        row.iter_mut().for_each(|x| *x /= length);
    }
    values
}

/// Returns a matrix `[HIDDEN, inputs]` that keeps the first `HIDDEN` columns, with little of
/// the others.
fn first_columns(checkpoint: &mut Checkpoint, inputs: usize) -> Vec<f32> {
    let mut values = checkpoint.numbers(&[HIDDEN, inputs]);
    for (row, values) in values.chunks_exact_mut(inputs).enumerate() {
        values.iter_mut().for_each(|x| *x *= LITTLE);
        values[row] += 1.0;
    }
    values
}

/// Returns rows of an output head for `tokens`. The row of a token is the sum of the embeddings
/// of the tokens before it in `pairs`.
fn rows(target: &Path, tokens: &[u32], pairs: &[(u32, u32)]) -> Vec<f32> {
    let embedding = embedding(target);
    let mut rows = vec![0.0; tokens.len() * HIDDEN];
    for (row, token) in rows.chunks_exact_mut(HIDDEN).zip(tokens) {
        for (before, _) in pairs.iter().filter(|(_, after)| after == token) {
            let own = embedding
                .chunks_exact(HIDDEN)
                .nth(*before as usize)
                .unwrap();
            row.iter_mut().zip(own).for_each(|(x, own)| *x += own);
        }
    }
    rows
}

/// Writes an EAGLE-1 head for `target` that drafts what comes next in some of `texts`.
pub fn eagle(target: &Path, texts: &[Vec<u32>]) -> TempDir {
    eagle_of(HEADS, target, texts)
}

/// Writes an EAGLE-1 head with `heads[0]` heads of queries and `heads[1]` heads of keys and
/// values.
pub fn eagle_of(heads: [usize; 2], target: &Path, texts: &[Vec<u32>]) -> TempDir {
    let mut head = Checkpoint::default();
    let fc = first_columns(&mut head, 2 * HIDDEN);
    head.floats("fc.weight", &[HIDDEN, 2 * HIDDEN], &fc);
    head.layer("layers.0", HIDDEN, heads);
    let all: Vec<u32> = (0..VOCAB as u32).collect();
    let rows = rows(target, &all, &pairs(texts, 1));
    head.floats("lm_head.weight", &[VOCAB, HIDDEN], &rows);
    head.write(&config(heads))
}

/// Writes an EAGLE-3 head. It predicts from the token before the last one, and drafts only
/// tokens of `texts`.
pub fn eagle3(target: &Path, texts: &[Vec<u32>]) -> TempDir {
    let mut head = Checkpoint::default();
    let pairs = pairs(texts, 2);
    let mut tokens: Vec<u32> = pairs.iter().map(|(_, after)| *after).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let fc = first_columns(&mut head, 3 * HIDDEN);
    head.floats("fc.weight", &[HIDDEN, 3 * HIDDEN], &fc);
    head.floats("norm.weight", &[HIDDEN], &[1.0; HIDDEN]);
    head.random("midlayer.hidden_norm.weight", &[HIDDEN]);
    head.random("midlayer.input_layernorm.weight", &[HIDDEN]);
    let rows = rows(target, &tokens, &pairs);
    head.floats("lm_head.weight", &[tokens.len(), HIDDEN], &rows);
    head.layer("midlayer", 2 * HIDDEN, HEADS);
    let offsets = tokens.iter().zip(0..);
    let offsets = offsets.map(|(token, own)| i64::from(*token) - own);
    let bytes: Vec<u8> = offsets.flat_map(i64::to_le_bytes).collect();
    head.push("d2t", "I64", &[tokens.len()], &bytes);
    let mut config = config(HEADS);
    config["draft_vocab_size"] = tokens.len().into();
    config["eagle_aux_hidden_state_layer_ids"] = serde_json::json!([0, 1, 2]);
    head.write(&config)
}

/// Returns the pairs of tokens that stand `distance` apart in a text, each pair once.
fn pairs(texts: &[Vec<u32>], distance: usize) -> Vec<(u32, u32)> {
    let of = |text: &Vec<u32>| {
        let pairs = text.iter().copied().zip(text[distance..].iter().copied());
        pairs.collect::<Vec<_>>()
    };
    let mut pairs: Vec<_> = texts.iter().flat_map(of).collect();
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}
