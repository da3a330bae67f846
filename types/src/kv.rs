//! Caches that a model's layers keep, and the groups of layers with equal caches.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::{LayerSpec, Mixer, ModelConfig};

mod pages;
mod states;
mod window_need;

pub use pages::KvPages;
pub use states::StateLimits;
pub use window_need::WindowNeed;

/// Content of a layer's cache, in the sizes of the whole model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvSpec {
    /// Keys and values of all positions.
    Full {
        /// Key/value heads.
        kv_heads: usize,
        /// Width of one head.
        head_dim: usize,
    },
    /// Keys and values of the last positions, which a sliding window shows.
    Window {
        /// Key/value heads.
        kv_heads: usize,
        /// Width of one head.
        head_dim: usize,
        /// Positions that a query sees, its own included.
        window: NonZeroUsize,
    },
    /// Latents of all positions, each with a key that all heads share. Every rank has whole ones,
    /// however many ranks divide the heads.
    Latent {
        /// Columns of the latent.
        latent: usize,
        /// Columns of the shared key.
        rotated: usize,
    },
}

impl KvSpec {
    /// Returns the columns of a key: the width of one head, or of a latent with the shared key.
    pub fn head_dim(&self) -> usize {
        match self {
            Self::Full { head_dim, .. } | Self::Window { head_dim, .. } => *head_dim,
            Self::Latent { latent, rotated } => latent + rotated,
        }
    }

    /// Returns the positions that a query sees, its own included; `None` = all.
    pub fn window(&self) -> Option<usize> {
        match self {
            Self::Full { .. } | Self::Latent { .. } => None,
            Self::Window { window, .. } => Some(window.get()),
        }
    }

    /// Returns the cache of the same keys and values that keeps all positions.
    fn keeping_all(self) -> Self {
        match self {
            Self::Full { .. } | Self::Latent { .. } => self,
            Self::Window {
                kv_heads, head_dim, ..
            } => Self::Full { kv_heads, head_dim },
        }
    }
}

/// Layers with equal caches. They share an allocation on each rank, and pages: a page of the
/// group has a part in each of its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvGroup {
    /// Cache of each layer.
    pub spec: KvSpec,
    /// Numbers of the layers in the model, ascending; none in the first group of a model all of
    /// whose layers have windows.
    pub layers: Vec<usize>,
}

impl LayerSpec {
    /// Returns the cache of positions that the layer keeps; `None` of a recurrent layer, which has
    /// a state instead, of a layer that reads another one's cache, and of a layer without a mixer.
    pub fn kv(&self) -> Option<KvSpec> {
        let attention = match &self.mixer {
            Mixer::Attention(attention) => attention,
            Mixer::LatentAttention(own) => {
                return Some(KvSpec::Latent {
                    latent: own.latent,
                    rotated: own.rotated,
                });
            }
            Mixer::GatedDelta(_) | Mixer::Mamba2(_) | Mixer::ShortConvolution(_) | Mixer::None => {
                return None;
            }
        };
        if attention.kv_of.is_some() {
            return None;
        }
        let (kv_heads, head_dim) = (attention.kv_heads, attention.head_dim);
        Some(match attention.window {
            None => KvSpec::Full { kv_heads, head_dim },
            Some(window) => KvSpec::Window {
                kv_heads,
                head_dim,
                window,
            },
        })
    }
}

impl ModelConfig {
    /// Returns the groups of layers with equal caches: first those that keep all positions,
    /// then those with windows, each in the order of their first layers. Example: layers that
    /// alternate between two caches are two groups, layers 0, 2, 4 and so on, and layers 1, 3, 5
    /// and so on.
    ///
    /// The first group always keeps all positions: its pages name the blocks of a text, and a
    /// drafter's caches lie under them. If all layers have windows, no layer is in it, and its
    /// pages have no memory but a drafter's. A layer whose window is as long as the longest text
    /// keeps all positions. Recurrent layers are in no group, nor are layers that read the cache
    /// of another.
    pub fn kv_groups(&self) -> Vec<KvGroup> {
        let longest = self.max_position_embeddings;
        let shows_all = |spec: &KvSpec| spec.window().is_none_or(|window| window >= longest);
        let mut groups: Vec<KvGroup> = Vec::new();
        let caches = || {
            let layers = self.layers.iter().enumerate();
            layers.filter_map(|(number, layer)| Some((number, layer.kv()?)))
        };
        let first = caches().next().map(|(_, spec)| spec);
        let windows = caches().all(|(_, spec)| !shows_all(&spec));
        groups.extend(first.filter(|_| windows).map(|first| KvGroup {
            spec: first.keeping_all(),
            layers: Vec::new(),
        }));
        for (number, mut spec) in caches() {
            if shows_all(&spec) {
                spec = spec.keeping_all();
            }
            match groups.iter_mut().find(|group| group.spec == spec) {
                Some(group) => group.layers.push(number),
                None => groups.push(KvGroup {
                    spec,
                    layers: vec![number],
                }),
            }
        }
        groups.sort_by_key(|group| group.spec.window().is_some());
        groups
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        Activation, Architecture, AttentionSpec, CheckpointFormat, GatedMlpNames, GatedMlpSpec,
        LoadFormat, Mixer, Mlp, Multipliers, NormKind, Norms, Quantization, TensorNames,
    };

    pub(crate) fn model(attentions: impl IntoIterator<Item = AttentionSpec>) -> ModelConfig {
        let layer = |attention| LayerSpec {
            mixer: Mixer::Attention(attention),
            mlp: Mlp::Gated(GatedMlpSpec {
                activation: Activation::Silu,
                width: 8,
                bias: false,
                names: GatedMlpNames::default(),
            }),
            norms: Norms::Before,
            rms_norm_eps: 1e-5,
            scale: 1.0,
        };
        ModelConfig {
            path: "model".into(),
            load_format: LoadFormat::Dummy,
            checkpoint: CheckpointFormat::Floats,
            quantization: Quantization::None,
            architecture: Architecture {
                class_name: "LlamaForCausalLM".to_owned(),
                model_type: "llama".to_owned(),
            },
            names: TensorNames::default(),
            hidden_size: 8,
            layers: attentions.into_iter().map(layer).collect(),
            vocab_size: 8,
            per_layer: None,
            max_position_embeddings: 8,
            norm: NormKind::Rms,
            multipliers: Multipliers::default(),
            rms_norm_eps: 1e-5,
            tie_word_embeddings: true,
            eos_token_ids: Vec::new(),
            tokenizer_eos_id: None,
            bos_token_id: None,
        }
    }

    #[test]
    fn layers_with_equal_caches_are_a_group() {
        let group = |kv_heads, head_dim, layers: &[usize]| KvGroup {
            spec: KvSpec::Full { kv_heads, head_dim },
            layers: layers.to_vec(),
        };
        let layers = |sizes: &[[usize; 3]]| {
            let layers = sizes.iter();
            model(
                layers.map(|[heads, kv_heads, dim]| AttentionSpec::dense(*heads, *kv_heads, *dim)),
            )
        };
        let alike = layers(&[[4, 2, 16], [8, 2, 16]]);
        assert_eq!(alike.kv_groups(), [group(2, 16, &[0, 1])]);
        let mixed = layers(&[[4, 2, 16], [4, 1, 32], [4, 2, 32], [4, 1, 32], [4, 2, 16]]);
        assert_eq!(
            mixed.kv_groups(),
            [
                group(2, 16, &[0, 4]),
                group(1, 32, &[1, 3]),
                group(2, 32, &[2])
            ]
        );
        assert_eq!(layers(&[]).kv_groups(), []);
    }

    /// Layers whose windows hide something are groups behind the others, and behind a group without
    /// layers if there are no others. Texts have at most 8 tokens here.
    #[test]
    fn windows_that_hide_something_are_groups_of_their_own() {
        let all = |windows: &[usize]| {
            let layer = |window: &usize| AttentionSpec {
                window: NonZeroUsize::new(*window),
                ..AttentionSpec::dense(4, 2, 16)
            };
            model(windows.iter().map(layer)).kv_groups()
        };
        let groups = |windows: &[usize]| {
            let groups = all(windows).into_iter();
            let groups = groups.map(|group| (group.spec.window(), group.layers));
            groups.collect::<Vec<_>>()
        };
        assert_eq!(
            groups(&[3, 5, 0, 3, 8, 9]),
            [
                (None, vec![2, 4, 5]),
                (Some(3), vec![0, 3]),
                (Some(5), vec![1])
            ]
        );
        assert_eq!(
            groups(&[3, 3, 5]),
            [(None, vec![]), (Some(3), vec![0, 1]), (Some(5), vec![2])]
        );
        let mut pages = KvPages::from(7);
        pages.window = 3;
        let of_groups: Vec<_> = all(&[3, 0])
            .iter()
            .map(|group| pages.of(group.spec))
            .collect();
        assert_eq!(of_groups, [7, 3]);
        assert_eq!(pages.bytes(2, 10, 100), 7 * 2 * 10 + 3 * 2 * 100);
    }

    /// Layers that read the caches of others keep none, and take no memory.
    #[test]
    fn shared_caches_are_kept_once() {
        let layer = |window: usize, kv_of| AttentionSpec {
            window: NonZeroUsize::new(window),
            kv_of,
            ..AttentionSpec::dense(4, 2, 16)
        };
        let own = [layer(3, None), layer(0, None), layer(3, None)];
        let readers = [layer(3, Some(2)), layer(0, Some(1)), layer(3, Some(2))];
        let expected = model(own.clone()).kv_groups();
        assert_eq!(model(own.into_iter().chain(readers)).kv_groups(), expected);
        let readers = model([layer(0, None), layer(0, Some(0))]);
        let elements = readers.layers.iter().map(|layer| layer.mixer.elements(8));
        assert_eq!(elements.collect::<Vec<_>>(), [8 * 16 * 12, 8 * 16 * 8]);
    }

    /// A rank's part of a group's cache has one shape, whatever query heads its layers have.
    #[test]
    fn layers_of_a_group_have_as_many_heads_on_a_rank() {
        for kv_heads in 1..=12 {
            for ranks in 1..=12 {
                let layers =
                    (1..=6).map(|group| AttentionSpec::dense(group * kv_heads, kv_heads, 8));
                let split = layers.filter(|layer| layer.heads.is_multiple_of(ranks));
                let mut on_rank = split.map(|layer| layer.kv_heads_per_rank(ranks));
                let first = on_rank.next();
                assert!(on_rank.all(|heads| Some(heads) == first));
            }
        }
    }
}
