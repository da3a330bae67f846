//! Damaged folders: configurations and headers of weights of which anything may have changed.
//! Each is loaded or refused, without a panic, and without memory beyond what files of this size
//! can need.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use lockstep_backend::Axis;
use lockstep_backend_cpu::{CpuBackend, CpuOptions, Isa};
use lockstep_collective::Single;
use lockstep_model::{ForwardLimits, LoadOptions, Transformer, check_weights};
use lockstep_types::{Dtype, ModelConfig};
use serde_json::{Value, json};

/// Folders by what reads them: plain and wrapped families, recurrent layers, mixtures, latents,
/// 8-bit and 4-bit floats, several files.
const FOLDERS: [&str; 12] = [
    "llama3_rope",
    "llama_fp8",
    "llama_fp8_modelopt",
    "llama_sharded",
    "gemma4_per_layer_wrapped",
    "qwen3_5_moe_wrapped",
    "qwen3_moe_fp8",
    "deepseek_v3_fp8",
    "gpt_oss_mxfp4",
    "granite_hybrid_moe",
    "lfm2_moe",
    "phi3_longrope_short",
];

/// Address space that reading one folder may add. The largest folder has 4 MB, and a model that
/// its configuration describes has tables by layers and positions.
const MOST_BYTES: u64 = 1 << 30;

/// Numbers of one seed (SplitMix64: Steele and others, 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    fn value(&mut self) -> Value {
        match self.below(20) {
            0 => Value::Null,
            1 => json!(self.next() & 1 == 0),
            2 => json!(0),
            3 => json!(-1),
            4 => json!(1),
            5 => json!(u32::MAX),
            6 => json!(i64::MAX),
            7 => json!(u64::MAX),
            8 => json!(1e308),
            9 => json!(1e-308),
            10 => json!(0.5),
            11 => json!(""),
            12 => json!("x".repeat(70_000)),
            13 => json!("\u{202e}\u{1b}[2J"),
            14 => json!([]),
            15 => json!({}),
            16 => json!(vec![1; 5_000]),
            17 => json!([[[[["F8_E4M3"]]]]]),
            18 => json!(1_u64 << self.below(40)),
            _ => json!(self.below(300)),
        }
    }

    /// Changes one place of `value`, which is chosen on a walk from its root.
    fn change(&mut self, value: &mut Value) {
        let stops = self.below(4) == 0;
        match value {
            Value::Object(map) if !map.is_empty() && !stops => {
                let name = map.keys().nth(self.below(map.len())).unwrap().clone();
                match self.below(12) {
                    0 => drop(map.remove(&name)),
                    1 => {
                        let moved = map.remove(&name).unwrap();
                        map.insert(format!("{name}x"), moved);
                    }
                    2 => {
                        let other = map.keys().nth(self.below(map.len())).unwrap();
                        let copied = map[other].clone();
                        map.insert(name, copied);
                    }
                    _ => self.change(&mut map[&name]),
                }
            }
            Value::Array(list) if !list.is_empty() && !stops => {
                let at = self.below(list.len());
                match self.below(6) {
                    0 => drop(list.remove(at)),
                    1 => {
                        let copied = list[at].clone();
                        list.extend(std::iter::repeat_n(copied, 1_000));
                    }
                    _ => self.change(&mut list[at]),
                }
            }
            Value::Number(number) if self.below(2) == 0 => {
                let number = number.as_u64().unwrap_or(7);
                let near = [
                    number.wrapping_add(1),
                    number.wrapping_sub(1),
                    number.wrapping_mul(2),
                    number / 2,
                ];
                *value = json!(near[self.below(near.len())]);
            }
            _ => *value = self.value(),
        }
    }

    fn changed(&mut self, text: &[u8]) -> Vec<u8> {
        let mut value: Value = serde_json::from_slice(text).unwrap();
        for _ in 0..=self.below(3) {
            self.change(&mut value);
        }
        serde_json::to_vec(&value).unwrap()
    }

    /// Changes the header of a safetensors file, its length, or the file's.
    fn weights(&mut self, file: &[u8]) -> Vec<u8> {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let (header, data) = file[8..].split_at(length);
        let with_length = |length: u64, header: &[u8], data: &[u8]| {
            [&length.to_le_bytes()[..], header, data].concat()
        };
        match self.below(8) {
            0 => file[..self.below(file.len())].to_vec(),
            1 => {
                let other = [0, 7, length as u64 - 1, 1 << 32, u64::MAX, self.next()];
                with_length(other[self.below(other.len())], header, data)
            }
            2 => {
                let mut bytes = file.to_vec();
                for _ in 0..=self.below(4) {
                    let at = self.below(8 + length);
                    bytes[at] ^= 1 << self.below(8);
                }
                bytes
            }
            _ => {
                let header = self.changed(header);
                with_length(header.len() as u64, &header, data)
            }
        }
    }
}

/// Bytes of address space that this process has had at most.
fn most_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() << 10
}

/// Writes a copy of `from` to `to`, with one file changed.
fn damage(numbers: &mut Numbers, from: &Path, to: &Path) {
    let names = fs::read_dir(from)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names
        .map(|name| name.into_string().unwrap())
        .filter(|name| name != "golden.json")
        .collect();
    names.sort_unstable();
    let at = numbers.below(names.len() + 2).min(names.len() - 1);
    // Configurations come first by their names, and are read first.
    let at = if numbers.below(2) == 0 { 0 } else { at };
    for (number, name) in names.iter().enumerate() {
        let bytes = fs::read(from.join(name)).unwrap();
        let bytes = match (number == at, name.ends_with(".safetensors")) {
            (false, _) => bytes,
            (true, true) => numbers.weights(&bytes),
            (true, false) => numbers.changed(&bytes),
        };
        fs::write(to.join(name), bytes).unwrap();
    }
}

/// Loads a model whose files hold all that its configuration says.
fn load(model: &ModelConfig) {
    let options = CpuOptions {
        threads: 1,
        dtype: Dtype::Float32,
        pin: None,
        isa: Some(Isa::Scalar),
    };
    let mut backend = CpuBackend::new(options, Box::new(Single::new())).unwrap();
    let limits = ForwardLimits {
        max_tokens: 2,
        requests: 1,
        positions: 2,
        groups: 1,
        page_size: 2,
        tree_nodes: 1,
        replays: 1,
        logit_block_rows: 1,
        max_commit: 0,
    };
    // Numbers that are none are found here, and refused.
    let options = LoadOptions::new(Axis::World, limits);
    drop(Transformer::load(&mut backend, model, options, &mut |_| {}));
}

/// `LOCKSTEP_MUTATED_CASES` tries more of them.
#[test]
fn damaged_folders_are_loaded_or_refused() {
    let cases = std::env::var("LOCKSTEP_MUTATED_CASES").map_or(400, |cases| cases.parse().unwrap());
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/architectures");
    let (mut described, mut whole) = (0, 0);
    let before = most_bytes();
    for seed in 0..cases {
        let mut numbers = Numbers(seed);
        let folder = fixtures.join(FOLDERS[numbers.below(FOLDERS.len())]);
        let copy = tempfile::tempdir().unwrap();
        damage(&mut numbers, &folder, copy.path());
        let Ok(model) = lockstep_model_folder::load(copy.path()) else {
            continue;
        };
        described += 1;
        if check_weights(&model, None).is_ok_and(|check| check.faults.is_empty()) {
            whole += 1;
            load(&model);
        }
        let taken = most_bytes() - before;
        assert!(
            taken < MOST_BYTES,
            "{taken} bytes, seed {seed}, {}",
            folder.display()
        );
    }
    eprintln!("{cases} folders: {described} described a model, {whole} of these held it");
    assert!(0 < whole && whole < described && described < cases);
}
