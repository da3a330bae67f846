//! DFlash's draft models in the names of the public checkpoints: whole layers, and the tensors
//! that make their context of the target's hidden states.

use lockstep_types::{DraftModel, ModelConfig};

use crate::{
    CaptureSpec, Shard, Topology,
    blocks::{
        Layer, LayerPlace, Linear, Norm, Variants,
        parts::{Convert, Form, Listed, Tensors},
    },
};

/// A draft model, whole on the rank that drafts. Embedding and output head are the target's.
pub(crate) struct Dflash<F: Form> {
    /// Projection of the target's hidden states to the draft's width, `[hidden, captured]`.
    pub fc: Linear<F>,
    /// Norm of the projected states. All layers make keys and values of them.
    pub hidden_norm: Norm<F>,
    /// The norm before each layer's attention, which a block goes through.
    pub input_norms: Vec<Norm<F>>,
    pub layers: Vec<Layer<F>>,
    /// Norm before the output head.
    pub norm: Norm<F>,
}

impl Dflash<Listed> {
    /// Lists the tensors of `draft`, a model for `target`.
    pub fn listed(draft: &DraftModel, target: &ModelConfig) -> Self {
        let (model, hidden) = (&draft.model, draft.model.hidden_size);
        let shard = Shard::of(model, Topology::alone());
        let variants = Variants::of(model, &shard);
        let names = &model.names;
        let layer = |number| {
            let place = LayerPlace {
                model,
                shard: &shard,
                number,
                prefix: &names.layer(number),
                inputs: hidden,
            };
            Layer::listed(&place, &variants)
        };
        let norm = |name: &str| Norm::of_stream(model, 0, name, model.rms_norm_eps);
        let input_norm = |number| norm(&format!("{}.{}", names.layer(number), names.mixer_norm));
        let captured = CaptureSpec::of_draft(draft).width(target.hidden_size);
        let layers = 0..model.layers.len();
        Self {
            fc: Linear::whole("fc", hidden, captured, false),
            hidden_norm: norm("hidden_norm"),
            input_norms: layers.clone().map(input_norm).collect(),
            layers: layers.map(layer).collect(),
            norm: norm(&names.norm),
        }
    }
}

impl<F: Form> Dflash<F> {
    /// Returns the norm before the attention of layer `number`, or before the output head if
    /// there is no such layer.
    pub fn norm_before(&self, number: usize) -> &Norm<F> {
        self.input_norms.get(number).unwrap_or(&self.norm)
    }
}

impl<F: Form> Tensors<F> for Dflash<F> {
    type In<T: Form> = Dflash<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Dflash<C::To>, C::Error> {
        Ok(Dflash {
            fc: self.fc.convert(to)?,
            hidden_norm: self.hidden_norm.convert(to)?,
            input_norms: self.input_norms.convert(to)?,
            layers: self.layers.convert(to)?,
            norm: self.norm.convert(to)?,
        })
    }
}
