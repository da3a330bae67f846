use super::*;
use crate::gguf::Place;
use crate::gguf::samples::Sample;

fn names(sample: &Sample) -> Result<Vec<Renamed>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = sample.write(folder.path(), "x.gguf");
    let place = Place::of(&path).expect("a GGUF file");
    let parts = Parts::open(&place).map_err(|error| error.to_string())?;
    renamed(&parts).map_err(|error| error.to_string())
}

#[test]
fn a_llama_has_the_names_of_a_model_folder() {
    let found = names(&Sample::llama()).expect("a model");
    let listed: Vec<_> = found.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(
        listed,
        [
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.mlp.down_proj.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.up_proj.weight",
            "model.layers.0.post_attention_layernorm.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.v_proj.weight",
            "model.norm.weight",
        ]
    );
    let order = |name: &str| {
        let mut all = found.iter();
        let own = all.find(|own| own.name.ends_with(name)).expect("there");
        (own.place.shape.clone(), own.place.interleaved)
    };
    assert_eq!(order("q_proj.weight"), (vec![32, 32], Some(16)));
    assert_eq!(order("k_proj.weight"), (vec![16, 32], Some(16)));
    assert_eq!(order("v_proj.weight"), (vec![16, 32], None));
    assert_eq!(order("down_proj.weight"), (vec![32, 64], None));
}

#[test]
fn stacks_become_experts() {
    let stack: Vec<u8> = (0..3 * 64 * 34u32).map(|at| at as u8).collect();
    let sample = Sample::llama()
        .number("llama.expert_count", 3)
        .without("blk.0.ffn_gate.weight")
        .without("blk.0.ffn_up.weight")
        .without("blk.0.ffn_down.weight")
        .tensor("blk.0.ffn_gate_exps.weight", 8, &[32, 64, 3], &stack);
    let found = names(&sample).expect("a model");
    let experts = found.iter().filter(|own| own.name.contains("experts"));
    let experts: Vec<_> = experts.collect();
    for (number, expert) in experts.iter().enumerate() {
        let name = format!("model.layers.0.block_sparse_moe.experts.{number}.w1.weight");
        assert_eq!(
            (&expert.name, &expert.place.shape[..]),
            (&name, &[64, 32][..])
        );
        let before = experts[0].place.bytes.start + (number * 64 * 34) as u64;
        assert_eq!(expert.place.bytes, before..before + 64 * 34);
    }
    assert_eq!(experts.len(), 3);
}

#[test]
fn tensors_that_nobody_knows_are_refused() {
    for (name, kind, reason) in [
        ("blk.0.attn_strange.weight", 0, "may change results"),
        ("blk.00.attn_q.weight", 0, "may change results"),
        ("strange", 0, "may change results"),
        ("blk.0.attn_v.scale", 0, "may change results"),
        (
            "output.weight",
            24,
            "tensor output.weight is I8; served are F32",
        ),
    ] {
        let sample = Sample::llama().tensor(name, kind, &[32], &[0; 128]);
        let error = names(&sample).expect_err(name);
        assert!(error.contains(reason), "{name}: {error}");
    }
    let other = Sample::llama().text("general.architecture", "rwkv7");
    let error = names(&other).expect_err("another architecture");
    assert!(error.contains("architecture rwkv7 is not served") && error.contains("qwen3moe"));
}

/// A small file may say that it has more experts than memory has room for their names.
#[test]
fn stacks_of_absurd_sizes_are_refused() {
    for (dims, reason) in [
        (&[1, 1, 5_000][..], "has 5000 experts, more than 4096"),
        (&[5_000, 1], "has no three dimensions"),
    ] {
        let sample = Sample::llama()
            .number("llama.expert_count", 3)
            .without("blk.0.ffn_gate.weight")
            .without("blk.0.ffn_up.weight")
            .without("blk.0.ffn_down.weight")
            .tensor("blk.0.ffn_gate_exps.weight", 1, dims, &[0; 10_000]);
        let error = names(&sample).expect_err("absurd");
        assert!(error.contains(reason), "{error}");
    }
}
