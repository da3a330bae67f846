//! New weights of latent attention, of recurrent layers and of a model's own draft layers: a worker
//! that took them goes on as one that started with them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lockstep_config::{Hardware, ServeArgs, resolve};
use lockstep_devices::{DeviceFootprint, Registry};
use lockstep_types::{
    EngineConfig,
    sampling::SamplingParams,
    step::{PlanPart, RankResult, SlotExtend, SlotOpen, StepPlan},
};
use serde_json::Value;

use super::support::{load_alone, repository};
use crate::worker::Folders;

/// Models with draft layers, a matrix of their first layer's mixer, and one of the last draft layer.
const MODELS: [(&str, &str, &str); 2] = [
    (
        "qwen3_5",
        "model.layers.0.linear_attn.in_proj_qkv.weight",
        "mtp.layers.0.mlp.down_proj.weight",
    ),
    (
        "deepseek_v3_two",
        "model.layers.0.self_attn.kv_b_proj.weight",
        // The second draft layer's, which drafts behind the first.
        "model.layers.4.eh_proj.weight",
    ),
];
const STEPS: u64 = 12;

/// Copies a model to `to`, with the elements of a matrix in reverse order.
fn turned(from: &Path, to: PathBuf, name: &str) -> PathBuf {
    fs::create_dir(&to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let file = to.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let described: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let at = |end: usize| {
        let offset = described[name]["data_offsets"][end].as_u64();
        8 + header + offset.unwrap() as usize
    };
    let matrix = &mut bytes[at(0)..at(1)];
    let other: Vec<u8> = matrix.rchunks(2).flatten().copied().collect();
    matrix.copy_from_slice(&other);
    fs::write(file, bytes).unwrap();
    to
}

fn config(model: &Path) -> EngineConfig {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model.to_owned());
    args.model.context_length = Some(128);
    args.parallel.threads_per_rank = Some(1);
    args.memory.max_total_tokens = Some(256);
    args.schedule.max_running_requests = Some(1);
    args.speculation.speculative_algorithm = Some("NEXTN".to_owned());
    args.speculation.speculative_num_steps = Some(2);
    args.speculation.speculative_eagle_topk = Some(2);
    args.speculation.speculative_num_draft_tokens = Some(4);
    let known = Registry::builtin().algorithms();
    let resolved = resolve(&args, &Hardware::detect(), &known, &DeviceFootprint);
    resolved.unwrap().value.0
}

/// Runs a request in a worker that starts with `model` and takes the weights in `update`. The
/// digests of the results are of drafts too.
fn run(model: &Path, update: Option<&Path>) -> Vec<RankResult> {
    let config = config(model);
    let mut worker = load_alone(&config).unwrap();
    if let Some(update) = update {
        let folders = Folders::below(update.parent().unwrap(), update, Some(update));
        worker.reload(Some(&folders.unwrap())).unwrap();
    }
    let pages = (1..=8).collect();
    let mut open = SlotOpen {
        generation: SamplingParams::greedy().into(),
        ..SlotOpen::new(0, (0..40).map(|at| 3 + at * 31 % 320).collect())
    };
    open.state = config.model.has_states().then_some(0);
    let mut part = PlanPart {
        opens: vec![open],
        extends: vec![row(40, pages)],
        ..PlanPart::default()
    };
    let mut step = |step| {
        let parts = vec![std::mem::take(&mut part)];
        part.extends.push(row(0, Vec::new()));
        let plan = StepPlan {
            step,
            draft_steps: 2,
            parts,
            ..StepPlan::default()
        };
        RankResult {
            forward_us: 0,
            stages: Default::default(),
            ..worker.step(&plan).unwrap()
        }
    };
    (1..=STEPS).map(&mut step).collect()
}

fn row(prefill_len: u32, new_pages: Vec<u32>) -> SlotExtend {
    SlotExtend {
        slot: 0,
        prefill_len,
        sample: true,
        new_pages,
        ..SlotExtend::default()
    }
}

fn texts(results: &[RankResult]) -> Vec<u32> {
    let outputs = results.iter().flat_map(|result| &result.outputs);
    outputs
        .flat_map(|output| output.token_ids.clone())
        .collect()
}

#[test]
fn a_worker_goes_on_with_new_weights_as_if_it_had_started_with_them() {
    for (name, of_mixer, of_draft) in MODELS {
        let old = repository().join("tests/fixtures/nextn").join(name);
        let folder = tempfile::tempdir().unwrap();
        let before = run(&old, None);
        for (matrix, changes_texts) in [(of_mixer, true), (of_draft, false)] {
            let new = turned(&old, folder.path().join(matrix), matrix);
            let (fresh, found) = (run(&new, None), run(&old, Some(&new)));
            assert_eq!(found, fresh, "{name}, {matrix}");
            let digests = |of: &[RankResult]| of[1].digests;
            assert_ne!(digests(&found), digests(&before), "{name}, {matrix}");
            let common = texts(&found).len().min(texts(&before).len());
            let same = texts(&found)[..common] == texts(&before)[..common];
            assert_eq!(same, !changes_texts, "{name}, {matrix}");
        }
    }
}
