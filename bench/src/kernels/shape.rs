//! Shapes of models.

use std::path::Path;

use clap::ValueEnum;
use lockstep_backend::{AttentionShape, DeltaShape};
use lockstep_types::{GatedDeltaSpec, ModelConfig};

/// Models that are often served on CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Llama-3.2-1B with a vocabulary of 32,000.
    #[value(name = "1b")]
    OneB,
    /// Qwen2.5-0.5B.
    #[value(name = "0.5b")]
    HalfB,
}

/// Sizes that replace those of the chosen shape (of 1b, if none is named).
#[derive(Debug, Clone, Copy, Default, clap::Args)]
#[group(id = "custom shape", multiple = true, conflicts_with = "model_path")]
pub struct Custom {
    /// Columns of the residual stream.
    #[arg(long)]
    hidden: Option<usize>,
    /// Columns inside the MLP.
    #[arg(long)]
    intermediate: Option<usize>,
    /// Query heads.
    #[arg(long)]
    heads: Option<usize>,
    /// Key/value heads.
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Columns of a head.
    #[arg(long)]
    head_dim: Option<usize>,
    /// Rows of the output head.
    #[arg(long)]
    vocab: Option<usize>,
}

/// Sizes of a model that the kernels need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub name: String,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// True if queries bring gates for the output.
    pub gated: bool,
    /// Heads of a recurrent layer, whose kernels are measured then instead of attention's.
    pub delta: Option<DeltaShape>,
}

/// A matrix of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    pub name: &'static str,
    pub rows: usize,
    pub cols: usize,
}

impl Shape {
    fn preset(preset: Preset) -> Self {
        let (name, sizes) = match preset {
            Preset::OneB => ("1b", [2048, 8192, 32, 8, 64, 32_000]),
            Preset::HalfB => ("0.5b", [896, 4864, 14, 2, 64, 151_936]),
        };
        let [hidden, intermediate, heads, kv_heads, head_dim, vocab] = sizes;
        Self {
            name: name.to_owned(),
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            vocab,
            gated: false,
            delta: None,
        }
    }

    /// Those of the model's first layer, and of its first attention.
    ///
    /// # Errors
    /// Fails for a model without keys and values of heads.
    pub fn of(model: &ModelConfig) -> anyhow::Result<Self> {
        let layer = &model.layers[0];
        let Some(attention) = model.attentions().next() else {
            anyhow::bail!(
                "{} has latent attention, whose kernels are not measured by themselves: name a \
                 model of plain attention, or measure passes with `lockstep bench offline`",
                model.path.display()
            );
        };
        let [heads, kv_heads, head_dim] = [attention.heads, attention.kv_heads, attention.head_dim];
        let name = model.path.file_name().unwrap_or(model.path.as_os_str());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            hidden: model.hidden_size,
            intermediate: layer.mlp.width(),
            heads,
            kv_heads,
            head_dim,
            vocab: model.vocab_size,
            gated: attention.output_gate,
            delta: None,
        })
    }

    /// Those of the recurrent layers of a model that has some, beside its attention's.
    fn recurrent(&self, model: &ModelConfig) -> Option<Self> {
        let GatedDeltaSpec {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps,
            names: _,
        } = *model.gated_deltas().next()?;
        Some(Self {
            name: format!("{}, recurrent", self.name),
            delta: Some(DeltaShape {
                key_heads,
                value_heads,
                key_dim,
                value_dim,
                taps,
            }),
            ..self.clone()
        })
    }

    /// The four matrices of a layer, in the order of their use. The small ones of a recurrent
    /// layer, to the strengths and decays of its heads, are left out.
    pub fn layer(&self) -> [Matrix; 4] {
        let matrix = |name, rows, cols| Matrix { name, rows, cols };
        let (attention, out) = (self.attention(), self.attention().out_width());
        let [mixed, output] = match &self.delta {
            Some(delta) => {
                let values = delta.value_width();
                let inputs = delta.channels() + values;
                [("in_proj", inputs), ("out_proj", values)]
            }
            None => {
                let gates = usize::from(self.gated) * out;
                [("qkv", attention.qkv_width() + gates), ("o", out)]
            }
        };
        [
            matrix(mixed.0, mixed.1, self.hidden),
            matrix(output.0, self.hidden, output.1),
            matrix("gate_up", 2 * self.intermediate, self.hidden),
            matrix("down", self.hidden, self.intermediate),
        ]
    }

    /// The output head.
    pub fn head(&self) -> Matrix {
        Matrix {
            name: "lm_head",
            rows: self.vocab,
            cols: self.hidden,
        }
    }

    /// Sizes of the model's attention.
    pub fn attention(&self) -> AttentionShape {
        AttentionShape::dense(
            self.heads,
            self.kv_heads,
            self.head_dim,
            (self.head_dim as f32).powf(-0.5),
        )
    }
}

/// The shapes that the command line asks for.
///
/// # Errors
/// Fails when the folder has no usable config.json, or sizes make no model.
pub fn chosen(
    presets: &[Preset],
    folder: Option<&Path>,
    custom: &Custom,
) -> anyhow::Result<Vec<Shape>> {
    if let Some(folder) = folder {
        let model = lockstep_model_folder::load(folder)?;
        let shape = Shape::of(&model)?;
        let recurrent = shape.recurrent(&model);
        return Ok(std::iter::once(shape).chain(recurrent).collect());
    }
    let Custom {
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        vocab,
    } = *custom;
    let sizes = [hidden, intermediate, heads, kv_heads, head_dim, vocab];
    if sizes.iter().all(Option::is_none) {
        let all = [Preset::OneB, Preset::HalfB];
        let presets = if presets.is_empty() { &all } else { presets };
        return Ok(presets
            .iter()
            .map(|&preset| Shape::preset(preset))
            .collect());
    }
    require!(
        presets.len() <= 1,
        "sizes such as --hidden change one shape: name one in --shape"
    );
    let base = Shape::preset(presets.first().copied().unwrap_or(Preset::OneB));
    let shape = Shape {
        name: format!("{}, changed", base.name),
        hidden: hidden.unwrap_or(base.hidden),
        intermediate: intermediate.unwrap_or(base.intermediate),
        heads: heads.unwrap_or(base.heads),
        kv_heads: kv_heads.unwrap_or(base.kv_heads),
        head_dim: head_dim.unwrap_or(base.head_dim),
        vocab: vocab.unwrap_or(base.vocab),
        gated: false,
        delta: None,
    };
    require!(
        sizes
            .iter()
            .flatten()
            .all(|size| (1..=1 << 20).contains(size))
            && shape.heads.is_multiple_of(shape.kv_heads)
            && shape.head_dim.is_multiple_of(2),
        "sizes are between 1 and 2^20, --heads is a multiple of --kv-heads, and --head-dim is even"
    );
    Ok(vec![shape])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_the_command_line() -> anyhow::Result<()> {
        let none = Custom::default();
        let names = |presets: &[Preset]| -> anyhow::Result<Vec<String>> {
            let shapes = chosen(presets, None, &none)?;
            Ok(shapes.into_iter().map(|shape| shape.name).collect())
        };
        assert_eq!(names(&[])?, ["1b", "0.5b"]);
        assert_eq!(names(&[Preset::HalfB])?, ["0.5b"]);
        let wide = Custom {
            hidden: Some(4096),
            heads: Some(64),
            ..none
        };
        let [shape] = &chosen(&[], None, &wide)?[..] else {
            anyhow::bail!("one shape");
        };
        assert_eq!(
            shape.layer()[0],
            Matrix {
                name: "qkv",
                rows: 80 * 64,
                cols: 4096
            }
        );
        assert_eq!(
            shape.layer()[3],
            Matrix {
                name: "down",
                rows: 4096,
                cols: 8192
            }
        );
        Ok(())
    }

    #[test]
    fn sizes_that_make_no_model_are_refused() {
        let none = Custom::default();
        let refused = [
            Custom {
                heads: Some(9),
                ..none
            },
            Custom {
                head_dim: Some(3),
                ..none
            },
            Custom {
                hidden: Some(0),
                ..none
            },
            Custom {
                kv_heads: Some(0),
                ..none
            },
            Custom {
                vocab: Some(1 << 30),
                ..none
            },
        ];
        for custom in refused {
            assert!(chosen(&[], None, &custom).is_err(), "{custom:?}");
        }
        let two = [Preset::OneB, Preset::HalfB];
        assert!(
            chosen(
                &two,
                None,
                &Custom {
                    hidden: Some(64),
                    ..none
                }
            )
            .is_err()
        );
        assert!(chosen(&[], Some(Path::new("/no/such/folder")), &none).is_err());
    }
}
