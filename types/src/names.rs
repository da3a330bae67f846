//! Names of a model's tensors in its files.

use serde::{Deserialize, Serialize};

/// Names of a model's tensors outside of blocks, without `.weight` and `.bias`. The names of a
/// block's tensors are in the block's description, such as [`crate::AttentionNames`]. They, and
/// the norms before blocks, stand below a layer's prefix: the queries of layer 3 are
/// "model.layers.3.self_attn.q_proj".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorNames {
    /// Embedding table.
    pub embedding: String,
    /// Prefix of all layers.
    pub layers: String,
    /// Norm before the output head.
    pub norm: String,
    /// Output head, where it is not the embedding.
    pub head: String,
    /// Norm before a layer's mixer.
    pub mixer_norm: String,
    /// Norm before a layer's MLP.
    pub mlp_norm: String,
    /// Norm of the output of a layer's mixer, in layers with norms behind their blocks.
    pub mixer_output_norm: String,
    /// Norm of the output of a layer's MLP, likewise.
    pub mlp_output_norm: String,
    /// Factor of the residual stream behind a layer: the whole name below the layer's prefix.
    /// `None` where layers have none.
    pub layer_scale: Option<String>,
    /// Per-layer embeddings, where a model has some.
    pub per_layer: PerLayerNames,
}

/// Names of the tensors of per-layer embeddings ([`crate::PerLayerEmbeddings`]), as
/// [`TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerLayerNames {
    /// Table of tokens with columns for all layers.
    pub table: String,
    /// Projection of embeddings, with rows for all layers.
    pub projection: String,
    /// Norm of a layer's projection, which all layers share.
    pub norm: String,
    /// Gate of a layer, below its prefix.
    pub gate: String,
    /// Projection to the residual stream, likewise.
    pub output: String,
    /// Norm of that projection, likewise.
    pub output_norm: String,
}

/// Names of Gemma 3n and 4.
impl Default for PerLayerNames {
    fn default() -> Self {
        let name = str::to_owned;
        Self {
            table: name("model.embed_tokens_per_layer"),
            projection: name("model.per_layer_model_projection"),
            norm: name("model.per_layer_projection_norm"),
            gate: name("per_layer_input_gate"),
            output: name("per_layer_projection"),
            output_norm: name("post_per_layer_input_norm"),
        }
    }
}

/// Names of Llama, and of the families that are written as Llamas.
impl Default for TensorNames {
    fn default() -> Self {
        let name = str::to_owned;
        Self {
            embedding: name("model.embed_tokens"),
            layers: name("model.layers"),
            norm: name("model.norm"),
            head: name("lm_head"),
            mixer_norm: name("input_layernorm"),
            mlp_norm: name("post_attention_layernorm"),
            mixer_output_norm: name("post_attention_layernorm"),
            mlp_output_norm: name("post_feedforward_layernorm"),
            layer_scale: None,
            per_layer: PerLayerNames::default(),
        }
    }
}

impl TensorNames {
    /// Returns the prefix of the names in layer `number`: "model.layers.3".
    pub fn layer(&self, number: usize) -> String {
        format!("{}.{number}", self.layers)
    }

    /// Returns the name of a layer's module below [`Self::layers`], of which `tensor` is the
    /// weight: "3.mlp.down_proj". `None` for other tensors.
    pub fn module<'t>(&self, tensor: &'t str) -> Option<&'t str> {
        self.below(tensor)?.strip_suffix(".weight")
    }

    /// Returns the name of a layer's tensor below [`Self::layers`]: "3.mlp.experts.down_proj".
    /// `None` for other tensors.
    pub fn below<'t>(&self, tensor: &'t str) -> Option<&'t str> {
        let below = tensor.strip_prefix(self.layers.as_str())?;
        below.strip_prefix('.')
    }

    /// Returns these names in a model whose body's names begin with `to` instead of `from`.
    /// The output head stands outside of the body and keeps its name.
    #[must_use]
    pub fn moved(mut self, from: &str, to: &str) -> Self {
        let per_layer = &mut self.per_layer;
        for name in [
            &mut self.embedding,
            &mut self.layers,
            &mut self.norm,
            &mut per_layer.table,
            &mut per_layer.projection,
            &mut per_layer.norm,
        ] {
            if let Some(rest) = name.strip_prefix(from) {
                *name = format!("{to}{rest}");
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_body_leaves_head_and_layers_norms_where_they_are() {
        let names = TensorNames::default();
        let moved = names.clone().moved("model", "language_model.model");
        assert_eq!(moved.embedding, "language_model.model.embed_tokens");
        assert_eq!(moved.layer(3), "language_model.model.layers.3");
        assert_eq!(moved.norm, "language_model.model.norm");
        let table = "language_model.model.embed_tokens_per_layer";
        assert_eq!(moved.per_layer.table, table);
        assert_eq!(moved.per_layer.gate, names.per_layer.gate);
        let module = moved.module("language_model.model.layers.3.mlp.down_proj.weight");
        assert_eq!(module, Some("3.mlp.down_proj"));
        assert_eq!(names.module("model.layers.3.mlp.down_proj.bias"), None);
        assert_eq!(names.module("model.norm.weight"), None);
        assert_eq!((moved.head, moved.mlp_norm), (names.head, names.mlp_norm));
    }
}
