//! Layers of grouped-query attention, alike but for their rotary embedding, their window and
//! their MLP.

use lockstep_types::{
    Activation, AttentionNames, AttentionSpec, GatedMlpNames, GatedMlpSpec, LayerSpec, Mixer, Mlp,
    ModelConfigError, Norms, QkNorm,
};

use super::{Traits, activation, layer_types, rope, window::Windows};
use crate::raw::Raw;

/// Largest believable number of layers.
const DEEPEST_MODEL: usize = 10_000;

/// Keys for the number of a layer's experts.
const EXPERTS: [&str; 3] = ["num_local_experts", "num_experts", "n_routed_experts"];

/// Properties of attention and of gated MLPs that differ between families of such models.
pub(super) struct Dense {
    /// True if q, k and v have biases that `config.json` does not mention.
    pub qkv_bias: bool,
    /// Norms of q and k.
    pub qk_norm: QkNorm,
    /// Places of a layer's norms.
    pub norms: Norms,
    /// Key of the epsilon of norms.
    pub norm_eps: &'static str,
    /// Activation of MLPs.
    pub activation: Activation,
    /// Rule by which layers have sliding windows.
    pub windows: Windows,
    /// True if `config.json` may ask for the rotation of a part of each head.
    pub partly_rotated: bool,
    /// Keys of biases that the family does not have.
    pub no_bias: &'static [&'static str],
    /// Names of an attention's tensors.
    pub attention_names: fn() -> AttentionNames,
    /// Names of a gated MLP's tensors.
    pub mlp_names: fn() -> GatedMlpNames,
}

impl Dense {
    /// Properties of Llama.
    pub const LLAMA: Self = Self {
        qkv_bias: false,
        qk_norm: QkNorm::None,
        norms: Norms::Before,
        norm_eps: Traits::LLAMA.norm_eps,
        activation: Activation::Silu,
        windows: Windows::Never,
        partly_rotated: false,
        no_bias: &[],
        attention_names: AttentionNames::default,
        mlp_names: GatedMlpNames::default,
    };

    /// Reads layers that all have the same gated MLP.
    ///
    /// # Errors
    /// [`ModelConfigError`]: a key is missing or damaged, or asks for a feature that the family
    /// does not have.
    pub fn layers(&self, config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
        for key in EXPERTS {
            // Without experts the model is a dense one.
            if config.get(key).is_some_and(|experts| experts != 0) {
                let remedy = "the family has no experts; use a dense model";
                return Err(config.unsupported(key, remedy));
            }
        }
        let mlp = self.gated(config)?;
        self.layers_with(config, |_| mlp.clone())
    }

    /// Reads the gated MLP of dense layers.
    ///
    /// # Errors
    /// [`ModelConfigError`]: a key is missing or damaged.
    pub fn gated(&self, config: &Raw) -> Result<Mlp, ModelConfigError> {
        Ok(Mlp::Gated(GatedMlpSpec {
            width: config.required("intermediate_size")?,
            activation: self.activation,
            bias: config.flag("mlp_bias", false)?,
            names: (self.mlp_names)(),
        }))
    }

    /// Reads layers whose MLPs are `mlp` of their numbers.
    ///
    /// # Errors
    /// [`ModelConfigError`]: a key is missing or damaged, or asks for a feature that the family
    /// does not have.
    pub fn layers_with(
        &self,
        config: &Raw,
        mlp: impl Fn(usize) -> Mlp,
    ) -> Result<Vec<LayerSpec>, ModelConfigError> {
        activation::check(config, self.activation)?;
        for key in self.no_bias {
            if config.flag(key, false)? {
                return Err(config.unsupported(key, "the family has no such bias; remove the key"));
            }
        }
        let hidden_size = config.required("hidden_size")?;
        let heads = config.required("num_attention_heads")?;
        let bias = config.flag("attention_bias", false)?;
        let (kv_heads, head_dim) = (
            kv_heads(config, heads)?,
            head_dim(config, hidden_size, heads)?,
        );
        let rms_norm_eps = norm_eps(config, self.norm_eps)?;
        let layer = |number, rope, window| LayerSpec {
            mixer: Mixer::Attention(AttentionSpec {
                window,
                rope,
                qk_norm: self.qk_norm,
                qkv_bias: bias || self.qkv_bias,
                output_bias: bias,
                names: (self.attention_names)(),
                ..AttentionSpec::dense(heads, kv_heads, head_dim)
            }),
            mlp: mlp(number),
            norms: self.norms,
            rms_norm_eps,
            scale: 1.0,
        };
        let depth = depth(config)?;
        let types = layer_types::read(config, depth)?;
        let windows = self.windows.read(config, depth)?;
        let layers = types.into_iter().zip(windows).enumerate();
        layers
            .map(|(number, (kind, window))| {
                let rope = match self.partly_rotated {
                    true => rope::read_partial(config, kind, head_dim)?,
                    false => rope::read(config, kind)?,
                };
                if let Some(long) = &rope.long {
                    rope::fits(config, long, rope.rotated.unwrap_or(head_dim))?;
                }
                Ok(layer(number, rope, window))
            })
            .collect()
    }
}

/// Reads the number of key/value heads: as many as query heads if nothing is said.
fn kv_heads(config: &Raw, heads: usize) -> Result<usize, ModelConfigError> {
    const KEY: &str = "num_key_value_heads";
    let kv_heads = config.size(KEY)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let message = format!("is {kv_heads}, which does not divide {heads} heads");
        return Err(config.wrong(KEY, message));
    }
    Ok(kv_heads)
}

/// Reads the width of a head: an equal share of the hidden size if nothing is said.
fn head_dim(config: &Raw, hidden_size: usize, heads: usize) -> Result<usize, ModelConfigError> {
    const KEY: &str = "head_dim";
    let width = match config.size(KEY)? {
        Some(given) => given,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let message = format!("is missing, and {heads} heads do not divide {hidden_size}");
            return Err(config.wrong(KEY, message));
        }
    };
    if !width.is_multiple_of(2) {
        let message = format!("is {width}; rotary embedding needs an even width");
        return Err(config.wrong(KEY, message));
    }
    Ok(width)
}

/// Reads the number of layers.
///
/// # Errors
/// [`ModelConfigError`]: the key is missing, or the number is larger than any model's.
pub(super) fn depth(config: &Raw) -> Result<usize, ModelConfigError> {
    const KEY: &str = "num_hidden_layers";
    let layers = config.required(KEY)?;
    if layers > DEEPEST_MODEL {
        return Err(config.wrong(KEY, format!("is {layers}, beyond any model's layers")));
    }
    Ok(layers)
}

/// Reads the epsilon that norms add to the mean square, which has the key `key`.
///
/// # Errors
/// [`ModelConfigError`]: the value is not a number above zero.
pub(crate) fn norm_eps(config: &Raw, key: &str) -> Result<f32, ModelConfigError> {
    Ok(config.number(key)?.unwrap_or(1e-6) as f32)
}
