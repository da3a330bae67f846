//! Promises of a pass besides its logits.

mod sums;
mod unlike;

use lockstep_backend::Axis;
use lockstep_collective::Single;
use lockstep_model::{ForwardLimits, LoadOptions, LogitBlock, ModelCache, ModelError, Transformer};
use lockstep_types::{ExpertTensors, ExpertsSpec, KvCacheDtype, Mlp, ModelConfig};

use crate::naive::Naive;
use crate::pass::{Pass, fixture};

struct Loaded {
    backend: Naive,
    transformer: Transformer<Naive>,
    cache: ModelCache<Naive>,
}

fn load(logit_block_rows: usize) -> Loaded {
    let model = lockstep_model_folder::load(&fixture("qwen3")).unwrap();
    Loaded::of(&model, logit_block_rows).unwrap()
}

impl Loaded {
    fn of(model: &ModelConfig, logit_block_rows: usize) -> Result<Self, ModelError> {
        let mut backend = Naive::new(Box::new(Single::new()));
        let limits = ForwardLimits {
            max_tokens: 12,
            requests: 1,
            positions: 20,
            groups: 1,
            page_size: 8,
            tree_nodes: 1,
            replays: 0,
            logit_block_rows,
            max_commit: 0,
        };
        let options = LoadOptions::new(Axis::World, limits);
        let transformer = Transformer::load(&mut backend, model, options, &mut |_| {})?;
        let cache = transformer.kv_cache(&mut backend, 4, 8, KvCacheDtype::Float32)?;
        Ok(Self {
            backend,
            transformer,
            cache,
        })
    }

    /// Returns the wanted logits of tokens 1, 2, 3 … `length`.
    fn run(&mut self, length: usize, wanted: &[u32]) -> Result<Vec<f32>, ModelError> {
        let mut pass = Pass::default();
        let text: Vec<u32> = (1..=length as u32).collect();
        pass.push(&text, 0..length, 8, |page| page as u32);
        let mut logits = Vec::new();
        let mut sink = |block: LogitBlock<'_>| logits.extend_from_slice(block.logits);
        self.transformer.forward(
            &mut self.backend,
            &mut self.cache,
            &pass.batch(wanted),
            None,
            &mut sink,
        )?;
        Ok(logits)
    }
}

/// Ranks compare schedules before serving. The schedules must list the real collectives.
#[test]
fn collectives_follow_the_schedule() {
    let mut loaded = load(3);
    for wanted in [&[][..], &[9], &[0, 4, 9], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]] {
        loaded.backend.issued.clear();
        loaded.run(10, wanted).unwrap();
        let schedule = loaded.transformer.schedule();
        let steps: Vec<_> = schedule.steps(wanted.len()).copied().collect();
        assert_eq!(loaded.backend.issued, steps);
    }
}

/// Asking for fewer rows, or in other blocks, changes no bit of the wanted rows.
#[test]
fn wanted_rows_do_not_depend_on_each_other() {
    let mut loaded = load(12);
    let vocab = loaded.transformer.model().vocab_size;
    let all: Vec<u32> = (0..10).collect();
    let expected = loaded.run(10, &all).unwrap();
    assert_eq!(expected.len(), 10 * vocab);
    for block in [1, 2, 3, 7] {
        let mut loaded = load(block);
        for wanted in [&[0][..], &[2, 3, 9], &all] {
            let found = loaded.run(10, wanted).unwrap();
            let rows = wanted
                .iter()
                .map(|row| &expected[*row as usize * vocab..][..vocab]);
            assert!(found == rows.collect::<Vec<_>>().concat());
        }
    }
}

/// A device may replay a pass, so the pass leaves nothing behind on the host.
#[test]
fn a_pass_can_run_again() {
    let all: Vec<u32> = (0..10).collect();
    for wanted in [&all[..0], &[9], &[2, 3, 9], &all] {
        let mut again = load(3);
        again.backend.replays = 2;
        for length in [10, 4, 10] {
            let wanted: Vec<u32> = wanted.iter().copied().filter(|w| *w < length).collect();
            let found = again.run(length as usize, &wanted).unwrap();
            let once = load(3).run(length as usize, &wanted).unwrap();
            assert!(found == once, "{wanted:?} of {length}");
        }
    }
}

#[test]
fn passes_beyond_the_limits_are_errors() {
    let mut loaded = load(3);
    let tokens = loaded.run(13, &[]).unwrap_err();
    assert!(matches!(
        tokens,
        ModelError::TooLarge {
            what: "tokens",
            found: 13,
            limit: 12
        }
    ));
    let wanted = loaded.run(12, &[0; 13]).unwrap_err();
    assert!(matches!(
        wanted,
        ModelError::TooLarge {
            what: "wanted logits",
            found: 13,
            limit: 12
        }
    ));
    let mut pass = Pass::default();
    pass.push(&[1; 21], 20..21, 8, |page| page as u32);
    let positions = loaded.transformer.forward(
        &mut loaded.backend,
        &mut loaded.cache,
        &pass.batch(&[]),
        None,
        &mut |_| {},
    );
    let positions = positions.unwrap_err();
    assert!(matches!(
        positions,
        ModelError::TooLarge {
            what: "positions",
            found: 21,
            limit: 20
        }
    ));
    assert!(loaded.run(12, &[11]).is_ok());
    assert!(loaded.run(0, &[]).unwrap().is_empty());
}

/// Rows, page tables and masks each have room of their own on the device.
#[test]
fn batches_beyond_the_limits_are_errors() {
    type Change = fn(&mut Pass);
    let another: Change = |pass| pass.push(&[1, 2], 0..2, 8, |page| 2 + page as u32);
    let long: Change = |pass| pass.rows[0].kv_len = 100;
    let tree: Change = |pass| {
        pass.rows[0].mask = Some(0);
        pass.masks = vec![1, 3];
    };
    for (change, what, found, limit) in [
        (another, "requests", 2, 1),
        (long, "pages", 13, 3),
        (tree, "words of masks", 2, 1),
    ] {
        let mut loaded = load(3);
        let mut pass = Pass::default();
        pass.push(&[1, 2], 0..2, 8, |page| page as u32);
        change(&mut pass);
        let (backend, cache) = (&mut loaded.backend, &mut loaded.cache);
        let batch = pass.batch(&[]);
        let error = loaded
            .transformer
            .forward(backend, cache, &batch, None, &mut |_| {})
            .unwrap_err();
        let expected = ModelError::TooLarge { what, found, limit };
        assert_eq!(error.to_string(), expected.to_string());
    }
}

/// The files must have the tensors and shapes that config.json promises.
#[test]
fn files_that_contradict_the_configuration_are_errors() {
    let load = |change: fn(&mut ModelConfig)| error_of("llama", change);
    assert!(load(|_| {}).is_none());
    let bias = load(|model| model.layers[0].attention_mut().unwrap().qkv_bias = true).unwrap();
    assert!(bias.contains("layers.0.self_attn.q_proj.bias"), "{bias}");
    let shape = load(|model| model.vocab_size += 1).unwrap();
    assert!(
        shape.contains("embed_tokens") && shape.contains("[332, 64]"),
        "{shape}"
    );
    let layers = load(|model| model.layers.push(model.layers[0].clone())).unwrap();
    assert!(layers.contains("layers.3."), "{layers}");
}

/// A router has a row for each expert, and each expert has its tensors.
#[test]
fn numbers_and_widths_of_experts_that_lie_are_errors() {
    type Change = fn(&mut ExpertsSpec);
    let load = |change: Change| {
        error_of("qwen3_moe", |model| {
            for layer in &mut model.layers {
                if let Mlp::Experts(experts) = &mut layer.mlp {
                    change(experts);
                }
            }
        })
    };
    assert!(load(|_| {}).is_none());
    let changes: [(Change, _, _); 4] = [
        (
            |experts| experts.count += 1,
            "layers.0.mlp.gate.weight",
            "[10, 80]",
        ),
        (
            |experts| experts.count -= 1,
            "layers.0.mlp.gate.weight",
            "[8, 80]",
        ),
        (
            |experts| experts.width += 1,
            "layers.0.mlp.experts.0.gate_proj.weight",
            "[29, 80]",
        ),
        (
            |experts| {
                if let ExpertTensors::Single { prefix, .. } = &mut experts.names.experts {
                    "experts".clone_into(prefix);
                }
            },
            "layers.0.experts.0.gate_proj.weight",
            "[28, 80]",
        ),
    ];
    for (change, tensor, shape) in changes {
        let error = load(change).unwrap();
        assert!(error.contains(tensor) && error.contains(shape), "{error}");
    }
}

/// Returns the error of loading a fixture after a change of its description.
fn error_of(name: &str, change: impl Fn(&mut ModelConfig)) -> Option<String> {
    let mut model = lockstep_model_folder::load(&fixture(name)).unwrap();
    change(&mut model);
    let mut backend = Naive::new(Box::new(Single::new()));
    let limits = ForwardLimits {
        max_tokens: 1,
        requests: 1,
        positions: 1,
        groups: 1,
        page_size: 1,
        tree_nodes: 1,
        replays: 0,
        logit_block_rows: 1,
        max_commit: 0,
    };
    let options = LoadOptions::new(Axis::World, limits);
    let loaded = Transformer::load(&mut backend, &model, options, &mut |_| {});
    loaded.err().map(|error| error.to_string())
}
