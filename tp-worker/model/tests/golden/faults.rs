//! Goldens find a wrong fact: each mechanism of a family, left out, moves logits far beyond noise.

#[path = "faults/gemma4.rs"]
mod gemma4;

use std::mem::swap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lockstep_types::{
    Activation, Dtype, ExpertGate, ExpertTensors, ExpertsSpec, GroupWorth, KvCacheDtype,
    LatentAttentionSpec, Mixer, Mlp, ModelConfig, NormKind, Norms, QkNorm, RopeConfig, RopeScaling,
    RouterWeights, Values,
};

use super::{F32_TOLERANCE, cases, cpu, max_error};
use crate::driver::{Factory, Feed, logits};
use crate::naive::{Naive, recurrent::Fault};

/// A fixture, the mechanism that is left out, and the way to leave it out.
type Left = (&'static str, &'static str, fn(&mut ModelConfig));

const FAULTS: [Left; 98] = [
    ("granite", "embedding's factor", |model| {
        model.multipliers.embedding = 1.0;
    }),
    ("granite", "residual factor", |model| {
        model.multipliers.residual = 1.0;
    }),
    ("granite", "divisor of logits", |model| {
        model.multipliers.logits = 1.0;
    }),
    ("granite", "factor of scores", |model| {
        each(model, |layer| layer.scale = 0.25);
    }),
    ("smollm3", "layers without rotation", |model| {
        each(model, |layer| layer.rope = RopeConfig::plain(20_000.0));
    }),
    ("smollm3_windows", "windows", |model| {
        each(model, |layer| layer.window = None);
    }),
    ("olmo3", "YaRN's factor", |model| {
        each(model, |layer| {
            if let RopeScaling::Yarn {
                attention_factor, ..
            } = &mut layer.rope.scaling
            {
                *attention_factor = 1.0;
            }
        });
    }),
    ("olmo3", "YaRN's frequencies", |model| {
        each(model, |layer| layer.rope = RopeConfig::plain(10_000.0));
    }),
    ("gemma2", "bound of scores", |model| {
        each(model, |layer| layer.softcap = None);
    }),
    ("gemma2", "bound of logits", |model| {
        model.multipliers.logit_softcap = None;
    }),
    ("gemma3", "distance of norms from one", |model| {
        model.norm = NormKind::Rms;
    }),
    ("gemma3", "scaled embedding", |model| {
        model.multipliers.embedding = 1.0;
    }),
    ("gemma3", "rotation by kind of layer", |model| {
        let full = model.layers[1].attention().unwrap().rope.clone();
        each(model, |layer| layer.rope = full.clone());
    }),
    ("gemma3", "GELU", silu),
    ("gemma4", "scales of layers", |model| {
        for layer in &mut model.layers {
            layer.scale = 1.0;
        }
    }),
    ("gemma4", "norm of values", |model| {
        each(model, |layer| {
            if layer.values == Values::Normed {
                layer.values = Values::Projected;
            }
        });
    }),
    ("gemma4", "part of pairs that rotate", |model| {
        each(model, |layer| layer.rope.scaling = RopeScaling::Default);
    }),
    ("gemma4", "scores without a divisor", |model| {
        each(model, |layer| layer.scale = 0.25);
    }),
    ("starcoder2", "GELU", silu),
    ("glm4_moe", "rotation of a part", |model| {
        each(model, |layer| layer.rope.rotated = None);
    }),
    ("glm4_moe", "shared expert", |model| {
        mixtures(model, |experts| experts.shared = None);
    }),
    ("glm4_moe", "factor of weights", |model| {
        mixtures(model, |experts| experts.routing.factor = 1.0);
    }),
    ("glm4_moe", "correction of choices", |model| {
        mixtures(model, |experts| experts.routing.corrected = false);
    }),
    ("minimax_m2", "weights by sigmoids", |model| {
        mixtures(model, |experts| {
            experts.routing.weights = RouterWeights::Softmax;
        });
    }),
    ("minimax_m2", "sum of weights", |model| {
        mixtures(model, |experts| experts.routing.renormalized = false);
    }),
    ("gpt_oss", "sinks", |model| {
        each(model, |layer| layer.sinks = false);
    }),
    ("gpt_oss_mxfp4", "windows beside sinks", |model| {
        each(model, |layer| layer.window = None);
    }),
    ("gpt_oss", "bound of gates", |model| {
        clamp(model, |limit, _| *limit = 7.0);
    }),
    ("gpt_oss", "factor of the logistic function", |model| {
        clamp(model, |_, alpha| *alpha = 1.0);
    }),
    ("gpt_oss", "bounded gate, and one beside up", |model| {
        mixtures(model, |experts| experts.gate = ExpertGate::Silu);
    }),
    ("gpt_oss_mxfp4", "biases of experts", |model| {
        mixtures(model, |experts| {
            if let ExpertTensors::Interleaved { bias, .. } = &mut experts.names.experts {
                *bias = false;
            }
        });
    }),
    ("gpt_oss", "bias of the router", |model| {
        mixtures(model, |experts| experts.router_bias = false);
    }),
    ("gpt_oss", "softmax over the chosen experts", |model| {
        mixtures(model, |experts| experts.routing.renormalized = false);
    }),
    ("gpt_oss", "biases of attention", |model| {
        each(model, |layer| {
            (layer.qkv_bias, layer.output_bias) = (false, false);
        });
    }),
    (
        "gpt_oss_mxfp4",
        "ramp of YaRN that is not rounded",
        |model| {
            each(model, |layer| {
                if let RopeScaling::Yarn { truncate, .. } = &mut layer.rope.scaling {
                    *truncate = true;
                }
            });
        },
    ),
    ("phi4_longrope", "divisors of long texts", |model| {
        *model = model.clone().serving(64);
    }),
    ("phi4_longrope", "growth by LongRoPE", |model| {
        each(model, |layer| {
            if let Some(long) = &mut layer.rope.long {
                long.attention_factor = 1.0;
            }
        });
    }),
    ("phi3_longrope_short", "divisors of short texts", |model| {
        each(model, |layer| layer.rope.long = None);
    }),
    ("ministral3", "growth of queries", |model| {
        each(model, |layer| layer.rope.query_scaling = None);
    }),
    (
        "mistral_sliding_window",
        "window's last position",
        |model| {
            widen(model, -1);
        },
    ),
    ("phi3_window", "window's end", |model| widen(model, 1)),
    ("qwen2_windows", "window's end", |model| widen(model, 1)),
    ("smollm3_windows", "window's end", |model| widen(model, 1)),
    ("olmo3", "window's last position", |model| widen(model, -1)),
    ("gemma2", "window's end", |model| widen(model, 1)),
    ("gemma3", "window's last position", |model| widen(model, -1)),
    ("gpt_oss", "window's end", |model| widen(model, 1)),
    ("gpt_oss_mxfp4", "window's last position", |model| {
        widen(model, -1);
    }),
    ("gpt_oss", "order of layers with windows", other_order),
    ("qwen2_windows", "order of layers with windows", other_order),
    ("gpt_oss", "YaRN's factor", |model| {
        each(model, |layer| {
            if let RopeScaling::Yarn {
                attention_factor, ..
            } = &mut layer.rope.scaling
            {
                *attention_factor = 1.0;
            }
        });
    }),
    ("gemma2", "factor of scores", |model| {
        each(model, |layer| {
            layer.scale = (layer.head_dim as f32).powf(-0.5);
        });
    }),
    ("gemma2", "norms behind blocks", |model| {
        for layer in &mut model.layers {
            layer.norms = Norms::Before;
        }
    }),
    ("gemma3", "norms of heads", no_qk_norm),
    ("olmo2", "norms of all heads at once", no_qk_norm),
    ("minimax_m2", "norms of all heads at once", no_qk_norm),
    ("minimax_m2", "rotation of a part", |model| {
        each(model, |layer| layer.rope.rotated = None);
    }),
    ("minimax_m2", "correction of choices", |model| {
        mixtures(model, |experts| experts.routing.corrected = false);
    }),
    ("glm4_moe", "sum of weights", |model| {
        mixtures(model, |experts| experts.routing.renormalized = false);
    }),
    ("glm4_moe", "norms of heads", no_qk_norm),
    ("glm4_moe", "biases of attention", |model| {
        each(model, |layer| layer.qkv_bias = false);
    }),
    ("qwen3_moe", "sum of weights", |model| {
        mixtures(model, |experts| experts.routing.renormalized = false);
    }),
    ("qwen3_moe", "last of the chosen experts", |model| {
        mixtures(model, |experts| experts.active -= 1);
    }),
    ("mixtral", "sum of weights", |model| {
        mixtures(model, |experts| experts.routing.renormalized = false);
    }),
    ("mixtral", "softmax over scores", |model| {
        mixtures(model, |experts| {
            experts.routing.weights = RouterWeights::Sigmoid;
        });
    }),
    ("granite_moe", "softmax over the chosen experts", |model| {
        mixtures(model, |experts| experts.routing.renormalized = false);
    }),
    ("granite_hybrid_moe", "layers without rotation", |model| {
        each(model, |layer| layer.rope = RopeConfig::plain(10_000.0));
    }),
    ("granite_hybrid", "rotation", |model| {
        each(model, |layer| layer.rope = RopeConfig::unrotated());
    }),
    ("granite_hybrid", "residual factor", |model| {
        model.multipliers.residual = 1.0;
    }),
    ("granite_hybrid_moe", "shared expert", |model| {
        mixtures(model, |experts| experts.shared = None);
    }),
    (
        "granite_hybrid_moe",
        "last of the chosen experts",
        |model| {
            mixtures(model, |experts| experts.active -= 1);
        },
    ),
    ("granite_hybrid", "biases of projections", |model| {
        for layer in &mut model.layers {
            if let Mixer::Mamba2(mamba) = &mut layer.mixer {
                mamba.bias = false;
            }
        }
    }),
    ("lfm2", "norms of heads", no_qk_norm),
    ("lfm2_bias", "biases of projections", |model| {
        for layer in &mut model.layers {
            if let Mixer::ShortConvolution(short) = &mut layer.mixer {
                short.bias = false;
            }
        }
    }),
    ("lfm2_moe", "correction of choices", |model| {
        mixtures(model, |experts| experts.routing.corrected = false);
    }),
    ("lfm2_moe", "sum of weights", |model| {
        mixtures(model, |experts| experts.routing.renormalized = false);
    }),
    ("lfm2_moe", "factor of weights", |model| {
        mixtures(model, |experts| experts.routing.factor = 1.0);
    }),
    ("lfm2_moe", "weights by sigmoids", |model| {
        mixtures(model, |experts| {
            experts.routing.weights = RouterWeights::Softmax;
        });
    }),
    ("nemotron_h", "squared ReLU", silu),
    ("nemotron_h", "layers without rotation", |model| {
        each(model, |layer| layer.rope = RopeConfig::plain(10_000.0));
    }),
    ("nemotron_h_moe", "squared ReLU of experts", |model| {
        mixtures(model, |experts| {
            experts.gate = ExpertGate::Ungated(Activation::Silu);
        });
    }),
    ("nemotron_h_moe", "shared expert", |model| {
        mixtures(model, |experts| experts.shared = None);
    }),
    ("nemotron_h_moe", "correction of choices", |model| {
        mixtures(model, |experts| experts.routing.corrected = false);
    }),
    ("qwen3_5", "rotation of a quarter", |model| {
        each(model, |layer| layer.rope.rotated = None);
    }),
    ("qwen3_next", "distance of norms from one", |model| {
        model.norm = NormKind::Rms;
    }),
    ("deepseek_v3", "growth of scores by YaRN", |model| {
        latents(model, |own| own.scale = (own.query() as f32).powf(-0.5));
    }),
    ("deepseek_v2", "factor of cosines", |model| {
        latents(model, |own| {
            if let RopeScaling::Yarn {
                attention_factor, ..
            } = &mut own.rope.scaling
            {
                *attention_factor = 1.0;
            }
        });
    }),
    ("deepseek_v3", "neighbours that rotate together", |model| {
        latents(model, |own| own.interleaved = false);
    }),
    ("glm4_moe_lite", "halves that rotate together", |model| {
        latents(model, |own| own.interleaved = true);
    }),
    ("deepseek_v3", "epsilon of latents", |model| {
        let eps = model.rms_norm_eps;
        latents(model, |own| own.norm_eps = eps);
    }),
    ("deepseek_v2_lite", "rotation of the shared key", |model| {
        latents(model, |own| own.rope = RopeConfig::unrotated());
    }),
    ("glm4_moe_lite", "biases of latents", |model| {
        latents(model, |own| own.bias = false);
    }),
    ("deepseek_v3", "groups of experts", |model| {
        mixtures(model, |experts| experts.routing.groups = None);
    }),
    ("deepseek_v2", "groups of experts", |model| {
        mixtures(model, |experts| experts.routing.groups = None);
    }),
    ("deepseek_v2", "worth of a group", |model| {
        worth(model, GroupWorth::TwoLargest);
    }),
    ("deepseek_v3", "worth of a group", |model| {
        worth(model, GroupWorth::Largest);
    }),
    ("deepseek_v3", "correction of choices in groups", |model| {
        mixtures(model, |experts| experts.routing.corrected = false);
    }),
    ("mistral4", "growth of queries", |model| {
        latents(model, |own| own.rope.query_scaling = None);
    }),
];

/// Mistakes inside of layers of the gated delta rule, and of output gates.
const DELTA: [Fault; 11] = [
    Fault::DecayAfter,
    Fault::FoundBeforeDecay,
    Fault::OutputBefore,
    Fault::OldestTap,
    Fault::TapsReversed,
    Fault::QueryScale,
    Fault::KeyHeadModulo,
    Fault::GateBeforeNorm,
    Fault::GatesSwapped,
    Fault::NormOffset,
    Fault::OutputGates,
];

/// Mistakes inside of layers of Mamba-2.
const MAMBA2: [Fault; 10] = [
    Fault::DecayAfter,
    Fault::OutputBefore,
    Fault::OldestTap,
    Fault::TapsReversed,
    Fault::Activation,
    Fault::NormBeforeGate,
    Fault::KeysAndQueries,
    Fault::Skip,
    Fault::StepBias,
    Fault::UpdateWithoutStep,
];

/// Mistakes that show where heads are in several groups.
const GROUPS: [Fault; 2] = [Fault::OneGroup, Fault::GroupModulo];

/// Mistakes inside of short convolutions.
const SHORT: [Fault; 4] = [
    Fault::OldestTap,
    Fault::TapsReversed,
    Fault::Activation,
    Fault::PartsSwapped,
];

/// Returns the mistakes that a model's recurrent layers can have.
fn mistakes(model: &ModelConfig) -> Vec<Fault> {
    let recurrent = model.layers.iter().find(|layer| layer.has_state());
    match recurrent.map(|layer| &layer.mixer) {
        Some(Mixer::GatedDelta(_)) => DELTA.to_vec(),
        Some(Mixer::Mamba2(mamba)) => {
            let groups = GROUPS.into_iter().filter(|_| mamba.groups > 1);
            let bias = mamba.convolution_bias.then_some(Fault::ConvolutionBias);
            MAMBA2.into_iter().chain(groups).chain(bias).collect()
        }
        Some(Mixer::ShortConvolution(short)) => {
            let bias = short.bias.then_some(Fault::ConvolutionBias);
            SHORT.into_iter().chain(bias).collect()
        }
        _ => Vec::new(),
    }
}

/// Lets layers with windows see `by` positions more.
fn widen(model: &mut ModelConfig, by: isize) {
    each(model, |layer| {
        let window = layer.window.map(NonZeroUsize::get);
        layer.window = window.and_then(|window| NonZeroUsize::new(window.checked_add_signed(by)?));
    });
}

/// Gives each layer the window of the layer before it.
fn other_order(model: &mut ModelConfig) {
    let mut last = model
        .layers
        .last()
        .and_then(|layer| layer.attention()?.window);
    each(model, |layer| swap(&mut layer.window, &mut last));
}

fn no_qk_norm(model: &mut ModelConfig) {
    each(model, |layer| layer.qk_norm = QkNorm::None);
}

/// Changes each latent attention.
fn latents(model: &mut ModelConfig, change: impl Fn(&mut LatentAttentionSpec)) {
    for layer in &mut model.layers {
        if let Mixer::LatentAttention(own) = &mut layer.mixer {
            change(own);
        }
    }
}

/// Changes the value by which groups of experts are chosen.
fn worth(model: &mut ModelConfig, worth: GroupWorth) {
    mixtures(model, |experts| {
        if let Some(groups) = &mut experts.routing.groups {
            groups.worth = worth;
        }
    });
}

/// Changes each mixture of experts.
fn mixtures(model: &mut ModelConfig, change: impl Fn(&mut ExpertsSpec)) {
    for layer in &mut model.layers {
        if let Some(experts) = layer.mlp.experts_mut() {
            change(experts);
        }
    }
}

/// Changes the bounded gates of each mixture of experts: limit and alpha.
fn clamp(model: &mut ModelConfig, change: impl Fn(&mut f32, &mut f32)) {
    mixtures(model, |experts| {
        if let ExpertGate::Clamped { limit, alpha } = &mut experts.gate {
            change(limit, alpha);
        }
    });
}

/// Changes the attention of each layer.
fn each(model: &mut ModelConfig, mut change: impl FnMut(&mut lockstep_types::AttentionSpec)) {
    for layer in &mut model.layers {
        if let Some(attention) = layer.attention_mut() {
            change(attention);
        }
    }
}

fn silu(model: &mut ModelConfig) {
    for layer in &mut model.layers {
        match &mut layer.mlp {
            Mlp::Gated(mlp) => mlp.activation = Activation::Silu,
            Mlp::Plain(mlp) => mlp.activation = Activation::Silu,
            Mlp::Parallel(both) => both.gated.activation = Activation::Silu,
            Mlp::Experts(_) | Mlp::None => {}
        }
    }
}

#[test]
fn a_mechanism_that_is_left_out_shows() {
    for (fixture, fault, leave_out) in FAULTS.into_iter().chain(gemma4::FAULTS) {
        let case = super::case(fixture);
        let mut model = case.model.clone();
        leave_out(&mut model);
        assert!(model != case.model, "{fixture}: {fault}");
        // The prompt of 37 tokens is longer than windows and original lengths.
        let prompt = &case.golden.prompts[1];
        let feed = Feed::plain(KvCacheDtype::Float32);
        let factory = cpu(Dtype::Float32);
        let found = logits(&model, &factory, feed, std::slice::from_ref(&prompt.ids));
        let error = max_error(&found[0][prompt.ids.len() - 1], &prompt.last_logits);
        assert!(
            error > 50.0 * F32_TOLERANCE,
            "{fixture} without its {fault}: {error}"
        );
    }
}

/// Every recurrent golden sees every mistake in the recurrence.
#[test]
fn a_mistake_in_recurrent_layers_shows() {
    for (name, case) in cases().filter(|(_, case)| case.model.has_states()) {
        if name.ends_with("wrapped") {
            continue;
        }
        let prompt = &case.golden.prompts[1];
        for fault in mistakes(&case.model) {
            let factory: Factory<Naive> = Arc::new(move |collective| {
                let mut naive = Naive::new(collective);
                naive.fault = Some(fault);
                naive
            });
            let feed = Feed::plain(KvCacheDtype::Float32);
            let texts = std::slice::from_ref(&prompt.ids);
            let found = logits(&case.model, &factory, feed, texts);
            let error = max_error(&found[0][prompt.ids.len() - 1], &prompt.last_logits);
            assert!(error > 50.0 * F32_TOLERANCE, "{name}, {fault:?}: {error}");
        }
    }
}
