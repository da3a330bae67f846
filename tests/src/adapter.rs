//! Adapters (LoRA) of the demo model, as PEFT writes them.

use std::{fs, path::Path};

use serde_json::{Map, Value, json};

/// Layers of the demo model.
const LAYERS: usize = 7;
const RANK: usize = 4;
/// Adapted projections with their inputs and outputs.
const PROJECTIONS: [(&str, usize, usize); 2] =
    [("self_attn.q_proj", 256, 512), ("mlp.down_proj", 768, 256)];

/// Writes an adapter to a new folder. Another `seed` makes another adapter; all of them change
/// the demo model's texts.
///
/// # Panics
/// Panics if the folder can't be made.
pub fn write(folder: &Path, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut value = |largest: f32| {
        // xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let share = (state >> 40) as f32 / (1 << 24) as f32;
        (share * 2.0 - 1.0) * largest
    };
    let (mut header, mut bytes) = (Map::new(), Vec::new());
    for layer in 0..LAYERS {
        for (module, inputs, outputs) in PROJECTIONS {
            // Enough to change every text.
            let matrices = [("A", [RANK, inputs], 0.1), ("B", [outputs, RANK], 0.4)];
            for (matrix, shape, largest) in matrices {
                let start = bytes.len();
                for _ in 0..shape[0] * shape[1] {
                    bytes.extend(value(largest).to_le_bytes());
                }
                let name =
                    format!("base_model.model.model.layers.{layer}.{module}.lora_{matrix}.weight");
                let tensor = json!({
                    "dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()],
                });
                header.insert(name, tensor);
            }
        }
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(bytes);
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none",
        "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"],
    });
    fs::create_dir(folder).expect("a folder");
    fs::write(folder.join("adapter_config.json"), config.to_string()).expect("written");
    fs::write(folder.join("adapter_model.safetensors"), file).expect("written");
}
