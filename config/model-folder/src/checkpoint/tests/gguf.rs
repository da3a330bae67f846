use std::path::{Path, PathBuf};

use lockstep_types::{BlockType, NormKind};

fn fixture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gguf");
    root.join(name).join("model.gguf")
}

#[test]
fn a_gguf_file_is_described_as_a_folder_would_be() {
    let llama = crate::load(&fixture("llama_k")).expect("served");
    let types = llama.checkpoint.gguf().expect("blocks");
    for (name, expected) in [
        ("model.embed_tokens.weight", Some(BlockType::Q6_K)),
        (
            "model.layers.0.self_attn.o_proj.weight",
            Some(BlockType::IQ4_XS),
        ),
        ("model.layers.0.mlp.down_proj.weight", Some(BlockType::Q5_K)),
        ("model.layers.1.mlp.up_proj.weight", Some(BlockType::Q4_K)),
        ("model.layers.1.input_layernorm.weight", None),
    ] {
        assert_eq!(types.block_type(name), expected, "{name}");
    }
    assert!(llama.tie_word_embeddings);
    assert_eq!((llama.vocab_size, llama.eos_token_ids), (331, vec![0, 2]));
    let rope = &llama.layers[0].attention().expect("an attention").rope;
    let long = rope.long.as_ref().expect("divisors");
    assert_eq!((long.attention_factor, long.short.len()), (1.0, 32));
    // The last pairs are divided by the whole factor.
    assert_eq!((long.divisors()[0], long.divisors()[31]), (1.0, 8.0));
    let experts = crate::load(&fixture("qwen3_moe")).expect("served");
    let types = experts.checkpoint.gguf().expect("blocks");
    let up = "model.layers.1.mlp.experts.5.up_proj.weight";
    assert_eq!(types.block_type(up), Some(BlockType::MXFP4));
}

#[test]
fn norms_of_gemma_have_one_added() {
    let gemma = crate::load(&fixture("gemma3")).expect("served");
    assert_eq!(gemma.norm, NormKind::Rms);
}
