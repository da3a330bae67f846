//! A model with layers that read the caches of others, with windows and without, with embeddings of
//! each layer, and with experts beside MLPs. Its texts have the same bits with chunks, pages of any
//! size, cached prefixes, drafts and trees, on ranks and DP ranks, and on GPUs, while pages behind
//! windows go back.

use std::num::NonZeroUsize;

use lockstep_types::{
    Activation, Dtype, ExpertGate, Mlp, ModelConfig, ParallelMlpNames, ParallelMlpSpec,
    PerLayerEmbeddings,
};

use crate::{
    cuda::alone,
    setup::{Algorithm, Layers, Setup, Shape, mix_experts},
    two_caches::{SPLITS, answers, jobs, jobs_of_devices, on_gpus, same, with_drafts},
};

/// Gives a model of random weights the layers of Gemma 4: the last two of four read the caches of
/// the first two, of which one has a window. Every second layer has experts beside its MLP.
pub fn be_gemma4(model: &mut ModelConfig) {
    mix_experts(model);
    let Mlp::Gated(gated) = model.layers[0].mlp.clone() else {
        panic!("the first layer has no experts");
    };
    for (number, layer) in model.layers.iter_mut().enumerate() {
        layer.scale = 0.75;
        let attention = layer.attention_mut().unwrap();
        attention.window = [NonZeroUsize::new(21), None][number % 2];
        attention.kv_of = number.checked_sub(2);
        if let Mlp::Experts(experts) = &mut layer.mlp {
            experts.gate = ExpertGate::GeluTanh;
            experts.scales = Some("router.per_expert_scale".to_owned());
            let name = str::to_owned;
            layer.mlp = Mlp::Parallel(Box::new(ParallelMlpSpec {
                gated: gated.clone(),
                experts: experts.clone(),
                names: ParallelMlpNames {
                    gated_output_norm: name("gated_output_norm"),
                    experts_norm: name("experts_norm"),
                    experts_output_norm: name("experts_output_norm"),
                    router_scale: name("router.scale"),
                },
            }));
        }
    }
    model.per_layer = Some(PerLayerEmbeddings {
        width: 16,
        rows: model.vocab_size,
        factor: 4.0,
        activation: Activation::GeluTanh,
    });
    assert_eq!(model.kv_groups().len(), 2);
}

fn plain(dtype: Dtype, (tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::Gemma4,
        dp,
        ..Setup::plain(dtype, tp)
    }
}

#[test]
fn chunks_pages_and_cached_prefixes_change_no_bit() {
    let jobs = jobs(6, 20);
    let dtypes = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float32];
    for (dtype, split) in dtypes.into_iter().zip(SPLITS) {
        let expected = answers(&plain(dtype, split), &jobs);
        for (page, chunk, overlap) in [(1, Some(7), true), (16, Some(24), false)] {
            let setup = Setup {
                page,
                chunk,
                overlap,
                radix: true,
                ..plain(dtype, split)
            };
            same(&format!("{setup:?}"), &answers(&setup, &jobs), &expected);
        }
    }
}

/// Chains and trees of a drafter that reads the text, and of the model itself.
#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(6, 32), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 4),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Itself, Shape::TREE, 16),
    ];
    let dtypes = [Dtype::Bfloat16, Dtype::Float32];
    for (dtype, split) in dtypes.into_iter().zip([(1, 1), (2, 2)]) {
        accepted += with_drafts(&plain(dtype, split), &jobs, &drafts);
    }
    assert!(accepted > 0);
}

/// The device reads other layers' caches, adds embeddings of each layer, joins experts and MLPs,
/// drafts and chooses. DP ranks gather the rows of both.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = alone(5);
    let mut accepted = 0;
    for (split, draft) in [
        ((1, 1), (Algorithm::Itself, Shape::TREE, 16)),
        ((2, 2), (Algorithm::Ngram, Shape::chain(3), 4)),
    ] {
        let plain = on_gpus(&plain(Dtype::Bfloat16, split));
        accepted += with_drafts(&plain, &jobs_of_devices(16), &[draft]);
    }
    assert!(accepted > 0);
}
