//! Small GGUF files for tests.

use std::path::{Path, PathBuf};

/// A file that is being made.
#[derive(Clone)]
pub(crate) struct Sample {
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, u32, Vec<u64>, Vec<u8>)>,
}

impl Sample {
    /// A file without keys and tensors.
    pub fn empty() -> Self {
        Self {
            keys: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// A llama of one layer: width 32, two heads of queries of width 16, one of keys, 64 columns
    /// in the MLP, five tokens.
    pub fn llama() -> Self {
        let mut sample = Self::empty()
            .text("general.architecture", "llama")
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "qwen2")
            .texts(
                "tokenizer.ggml.tokens",
                &["a", "b", "ab", "<|im_end|>", "[PAD4]"],
            )
            .list(
                "tokenizer.ggml.token_type",
                5,
                &[1i32, 1, 1, 3, 5].map(i32::to_le_bytes),
            )
            .texts("tokenizer.ggml.merges", &["a b"])
            .number("tokenizer.ggml.eos_token_id", 3)
            .float("llama.attention.layer_norm_rms_epsilon", 1e-5);
        for (key, value) in [
            ("context_length", 128),
            ("embedding_length", 32),
            ("block_count", 1),
            ("feed_forward_length", 64),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("vocab_size", 5),
        ] {
            sample = sample.number(&format!("llama.{key}"), value);
        }
        for (name, cols, rows) in [
            ("token_embd", 32, 5),
            ("output_norm", 32, 0),
            ("blk.0.attn_norm", 32, 0),
            ("blk.0.ffn_norm", 32, 0),
            ("blk.0.attn_q", 32, 32),
            ("blk.0.attn_k", 32, 16),
            ("blk.0.attn_v", 32, 16),
            ("blk.0.attn_output", 32, 32),
            ("blk.0.ffn_gate", 32, 64),
            ("blk.0.ffn_up", 32, 64),
            ("blk.0.ffn_down", 64, 32),
        ] {
            let dims = if rows == 0 {
                vec![cols]
            } else {
                vec![cols, rows]
            };
            let count = (cols * rows.max(1)) as usize;
            sample = sample.tensor(&format!("{name}.weight"), 0, &dims, &vec![0; 4 * count]);
        }
        sample
    }

    /// Adds a key, or gives it another value.
    fn key(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let value = [&kind.to_le_bytes()[..], value].concat();
        self.keys.retain(|(own, _)| own != key);
        self.keys.push((key.to_owned(), value));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.keys.retain(|(own, _)| own != name);
        self.tensors.retain(|(own, ..)| own != name);
        self
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.key(key, 8, &text(value))
    }

    pub fn number(self, key: &str, value: u32) -> Self {
        self.key(key, 4, &value.to_le_bytes())
    }

    pub fn float(self, key: &str, value: f32) -> Self {
        self.key(key, 6, &value.to_le_bytes())
    }

    pub fn flag(self, key: &str, value: bool) -> Self {
        self.key(key, 7, &[u8::from(value)])
    }

    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        let items: Vec<_> = values.iter().map(|value| text(value)).collect();
        self.list(key, 8, &items)
    }

    pub fn list<I: AsRef<[u8]>>(self, key: &str, kind: u32, items: &[I]) -> Self {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| value.extend(item.as_ref()));
        self.key(key, 9, &value)
    }

    /// Adds a tensor of a type, with dimensions from the innermost on.
    pub fn tensor(mut self, name: &str, kind: u32, dims: &[u64], bytes: &[u8]) -> Self {
        self.tensors.retain(|(own, ..)| own != name);
        let tensor = (name.to_owned(), kind, dims.to_vec(), bytes.to_vec());
        self.tensors.push(tensor);
        self
    }

    /// Returns the file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        let mut data: Vec<u8> = Vec::new();
        for (name, kind, dims, own) in &self.tensors {
            data.resize(data.len().next_multiple_of(32), 0);
            bytes.extend(text(name));
            bytes.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(own);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
        bytes
    }

    /// Writes the file into `folder`.
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.bytes()).expect("written");
        path
    }
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}
