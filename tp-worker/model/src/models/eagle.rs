//! Draft heads in the names of the public checkpoints, EAGLE's and models' own draft layers: a
//! layer, or some that draft in turn, and the tensors that join it to its target.

use lockstep_types::{DraftKind, DraftModel, Eagle3Norms, ModelConfig};

use crate::{
    CaptureSpec, Shard, Topology,
    blocks::{
        Layer, LayerPlace, Linear, Norm, Variants,
        parts::{Convert, Form, Listed, MatrixPart, Tensors},
    },
};

/// A head, whole on the rank that drafts.
pub(crate) struct Eagle<F: Form> {
    /// The head's own embedding; `None` if it reads the target's.
    pub embedding: Option<F::Matrix>,
    /// The head's own output head; `None` if it reads the target's.
    pub head: Option<F::Matrix>,
    /// The layers in the order in which they draft: EAGLE's one, or a model's own.
    pub layers: Vec<HeadLayer<F>>,
}

/// A head's layer, and what joins it to the hidden states that it reads.
pub(crate) struct HeadLayer<F: Form> {
    /// Projection of the inputs: `[hidden, 2·hidden]` for EAGLE-1 and draft layers,
    /// `[hidden, captured width]` for EAGLE-3.
    pub fc: Linear<F>,
    pub layer: Layer<F>,
    pub wiring: Wiring<F>,
}

/// Connections between embedding, hidden state and layer, by the kind of head.
pub(crate) enum Wiring<F: Form> {
    /// `fc` joins embedding and hidden state to the layer's residual stream.
    Eagle {
        /// Norm before the attention; the public checkpoints have none.
        input_norm: Option<Norm<F>>,
    },
    /// `fc` joins the target's hidden states to the residual stream. The attention reads
    /// embedding and residual stream side by side.
    Eagle3 {
        feature_norms: FeatureNorms<F>,
        embedding_norm: Norm<F>,
        hidden_norm: Norm<F>,
        /// True if the residual stream begins with the normed hidden state.
        normed_residual: bool,
        /// Norm before the output head.
        norm: Norm<F>,
        /// True if the next draft goes on from the output of `norm`.
        normed_output: bool,
    },
    /// `fc` joins the normed embedding and the normed hidden state to the layer's residual stream.
    Nextn {
        embedding_norm: Norm<F>,
        hidden_norm: Norm<F>,
        /// Norm before the mixer.
        input_norm: Norm<F>,
        /// Norm before the output head, and before the next draft.
        norm: Norm<F>,
    },
}

/// Norms of the target's hidden states before EAGLE-3's `fc`, in the order in which they run.
pub(crate) struct FeatureNorms<F: Form> {
    /// Norm of all of them side by side.
    pub joined: Option<Norm<F>>,
    /// Norm of each; none if they have none.
    pub each: Vec<Norm<F>>,
}

impl<F: Form> Wiring<F> {
    /// Returns the norm of outputs before the next draft goes on from them, if there is one.
    pub fn output_norm(&self) -> Option<&Norm<F>> {
        match self {
            Self::Eagle { .. } => None,
            Self::Eagle3 {
                norm,
                normed_output,
                ..
            } => normed_output.then_some(norm),
            Self::Nextn { norm, .. } => Some(norm),
        }
    }
}

/// Optional tensors that a head's checkpoint has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present {
    /// True if there is an embedding; otherwise the head reads the target's.
    pub embedding: bool,
    /// True if there is an output head; otherwise the head reads the target's.
    pub head: bool,
    /// True if `fc` has a bias.
    pub fc_bias: bool,
    /// True if there is EAGLE-1's norm before the attention.
    pub input_norm: bool,
}

impl Present {
    /// None of the optional tensors.
    pub const NONE: Self = Self {
        embedding: false,
        head: false,
        fc_bias: false,
        input_norm: false,
    };
}

pub(crate) const EMBEDDING: &str = "embed_tokens.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const FC_BIAS: &str = "fc.bias";
pub(crate) const INPUT_NORM: &str = "layers.0.input_layernorm";

/// Returns the number of rows of a head's logits: of its own table, or of the target's.
pub(crate) fn vocab(draft: &DraftModel, target: &ModelConfig) -> usize {
    match draft.kind {
        DraftKind::Model => draft.model.vocab_size,
        DraftKind::Eagle | DraftKind::Nextn { .. } | DraftKind::Dflash(_) => target.vocab_size,
        DraftKind::Eagle3 {
            draft_vocab_size, ..
        } => draft_vocab_size,
    }
}

/// Returns the norms of a head beyond those that all EAGLE-3 heads have.
pub(crate) fn norms(draft: &DraftModel) -> Eagle3Norms {
    match draft.kind {
        DraftKind::Eagle3 { norms, .. } => norms,
        DraftKind::Model | DraftKind::Eagle | DraftKind::Nextn { .. } | DraftKind::Dflash(_) => {
            Eagle3Norms::default()
        }
    }
}

impl Eagle<Listed> {
    /// Lists the tensors of `draft`, a head for `target`. `present` says which optional ones
    /// are there.
    pub fn listed(draft: &DraftModel, target: &ModelConfig, present: Present) -> Self {
        let hidden = draft.model.hidden_size;
        let table = |name, rows| MatrixPart::table(name, rows, hidden);
        let layers = 0..draft.layers_in_turn();
        Self {
            embedding: present
                .embedding
                .then(|| table(EMBEDDING, target.vocab_size)),
            head: present.head.then(|| table(HEAD, vocab(draft, target))),
            layers: layers
                .map(|number| HeadLayer::listed(draft, target, present, number))
                .collect(),
        }
    }
}

impl HeadLayer<Listed> {
    /// Lists the tensors of layer `number`.
    fn listed(draft: &DraftModel, target: &ModelConfig, present: Present, number: usize) -> Self {
        let (model, hidden) = (&draft.model, draft.model.hidden_size);
        let shard = Shard::of(model, Topology::alone());
        let variants = Variants::of(model, &shard);
        let layer = |prefix: &str, inputs| {
            let place = LayerPlace {
                model,
                shard: &shard,
                number,
                prefix,
                inputs,
            };
            Layer::listed(&place, &variants)
        };
        // The residual stream begins in each layer anew.
        let norm = |name: &str| Norm::of_stream(model, 0, name, model.rms_norm_eps);
        let projection = |name, inputs| Linear::whole(name, hidden, inputs, present.fc_bias);
        let fc = |inputs| projection("fc", inputs);
        let (fc, layer, wiring) = match &draft.kind {
            DraftKind::Eagle | DraftKind::Model | DraftKind::Dflash(_) => {
                let input_norm = present.input_norm.then(|| norm(INPUT_NORM));
                let wiring = Wiring::Eagle { input_norm };
                (fc(2 * hidden), layer("layers.0", hidden), wiring)
            }
            DraftKind::Nextn { names } => {
                let names = &names[number];
                let input_norm = format!("{}.{}", names.layer, model.names.mixer_norm);
                let wiring = Wiring::Nextn {
                    embedding_norm: norm(&names.embedding_norm),
                    hidden_norm: norm(&names.hidden_norm),
                    input_norm: norm(&input_norm),
                    norm: norm(&names.norm),
                };
                let fc = projection(&names.projection, 2 * hidden);
                (fc, layer(&names.layer, hidden), wiring)
            }
            DraftKind::Eagle3 { norms, .. } => {
                let capture = CaptureSpec::of_draft(draft);
                let features = capture.width(target.hidden_size);
                let wiring = Wiring::Eagle3 {
                    feature_norms: FeatureNorms::listed(model, *norms, &capture, target),
                    embedding_norm: norm("midlayer.input_layernorm"),
                    hidden_norm: norm("midlayer.hidden_norm"),
                    normed_residual: norms.before_residual,
                    norm: norm("norm"),
                    normed_output: norms.of_output,
                };
                (fc(features), layer("midlayer", 2 * hidden), wiring)
            }
        };
        Self { fc, layer, wiring }
    }
}

impl FeatureNorms<Listed> {
    fn listed(
        model: &ModelConfig,
        norms: Eagle3Norms,
        capture: &CaptureSpec,
        target: &ModelConfig,
    ) -> Self {
        let norm = |name: &str, width| Norm::of_columns(name, width, model.rms_norm_eps);
        let joined = || norm("input_norm", capture.width(target.hidden_size));
        let each = |number| norm(&format!("fc_norm.{number}"), target.hidden_size);
        let count = if norms.of_layers {
            capture.layers.len()
        } else {
            0
        };
        Self {
            joined: norms.before_projection.then(joined),
            each: (0..count).map(each).collect(),
        }
    }
}

impl<F: Form> Tensors<F> for FeatureNorms<F> {
    type In<T: Form> = FeatureNorms<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<FeatureNorms<C::To>, C::Error> {
        Ok(FeatureNorms {
            joined: self.joined.convert(to)?,
            each: self.each.convert(to)?,
        })
    }
}

impl<F: Form> Tensors<F> for Eagle<F> {
    type In<T: Form> = Eagle<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Eagle<C::To>, C::Error> {
        Ok(Eagle {
            embedding: to.optional_matrix(self.embedding.as_ref())?,
            head: to.optional_matrix(self.head.as_ref())?,
            layers: self.layers.convert(to)?,
        })
    }
}

impl<F: Form> Tensors<F> for HeadLayer<F> {
    type In<T: Form> = HeadLayer<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<HeadLayer<C::To>, C::Error> {
        Ok(HeadLayer {
            fc: self.fc.convert(to)?,
            layer: self.layer.convert(to)?,
            wiring: self.wiring.convert(to)?,
        })
    }
}

impl<F: Form> Tensors<F> for Wiring<F> {
    type In<T: Form> = Wiring<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Wiring<C::To>, C::Error> {
        Ok(match self {
            Self::Eagle { input_norm } => Wiring::Eagle {
                input_norm: input_norm.convert(to)?,
            },
            Self::Eagle3 {
                feature_norms,
                embedding_norm,
                hidden_norm,
                normed_residual,
                norm,
                normed_output,
            } => Wiring::Eagle3 {
                feature_norms: feature_norms.convert(to)?,
                embedding_norm: embedding_norm.convert(to)?,
                hidden_norm: hidden_norm.convert(to)?,
                normed_residual: *normed_residual,
                norm: norm.convert(to)?,
                normed_output: *normed_output,
            },
            Self::Nextn {
                embedding_norm,
                hidden_norm,
                input_norm,
                norm,
            } => Wiring::Nextn {
                embedding_norm: embedding_norm.convert(to)?,
                hidden_norm: hidden_norm.convert(to)?,
                input_norm: input_norm.convert(to)?,
                norm: norm.convert(to)?,
            },
        })
    }
}
