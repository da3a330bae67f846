//! Norms of the residual stream, and of the outputs of blocks.

use lockstep_backend::{self as backend, Backend, BlockEnd, RmsNorm};
use lockstep_types::{ModelConfig, NormKind};

use super::parts::{Convert, Form, Listed, Tensors, VectorPart};

/// A norm's weights `[hidden]`, whole on every rank.
pub(crate) struct Norm<F: Form> {
    pub weight: F::Vector,
    /// Bias of a layer norm; `None` of an RMS norm.
    pub bias: Option<F::Vector>,
    /// Epsilon added to the mean square, or to the variance.
    pub eps: f32,
}

impl Norm<Listed> {
    /// Lists a norm of the residual stream of `model` before layer `number`, whose tensors are
    /// `name`, without `.weight`.
    ///
    /// The stream is kept divided: see [`ModelConfig::stream_divisor`]. A norm takes no notice of
    /// the divisor if its epsilon is divided too, by the square.
    pub fn of_stream(model: &ModelConfig, number: usize, name: &str, eps: f32) -> Self {
        Self::listed(model, name, eps / model.stream_divisor(number).powi(2))
    }

    /// Lists a norm of the output of a block of layer `number` of `model`, likewise. The output
    /// joins the divided stream, so it is divided by the scales of the layers before.
    pub fn of_output(model: &ModelConfig, number: usize, name: &str, eps: f32) -> Self {
        let mut norm = Self::listed(model, name, eps);
        norm.weight.over = model.stream_divisor(number) / model.multipliers.residual;
        norm
    }

    /// Lists an RMS norm over `width` columns that are no residual stream.
    pub fn of_columns(name: &str, width: usize, eps: f32) -> Self {
        Self::of_kind(NormKind::Rms, name, width, eps)
    }

    fn listed(model: &ModelConfig, name: &str, eps: f32) -> Self {
        Self::of_kind(model.norm, name, model.hidden_size, eps)
    }

    fn of_kind(kind: NormKind, name: &str, width: usize, eps: f32) -> Self {
        let whole = vec![0..width; 1];
        let bias =
            (kind == NormKind::Layer).then(|| VectorPart::whole(format!("{name}.bias"), width));
        Self {
            weight: VectorPart::norm(name, kind, width, whole),
            bias,
            eps,
        }
    }
}

impl<F: Form> Tensors<F> for Norm<F> {
    type In<T: Form> = Norm<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Norm<C::To>, C::Error> {
        Ok(Norm {
            weight: to.vector(&self.weight)?,
            bias: to.optional(self.bias.as_ref())?,
            eps: self.eps,
        })
    }
}

impl<B: Backend> Norm<B> {
    /// Returns the norm as the backend's operations take it, without its bias.
    pub fn rms(&self) -> RmsNorm<'_, B::Vector> {
        RmsNorm {
            weight: &self.weight,
            eps: self.eps,
        }
    }

    /// Returns the norm as the ends of blocks take it.
    pub fn operand(&self) -> backend::Norm<'_, B::Vector> {
        let norm = self.rms();
        match &self.bias {
            None => backend::Norm::Rms(norm),
            Some(bias) => backend::Norm::Layer { norm, bias },
        }
    }

    /// Norms the rows of `input` `[n, hidden]` into `out`, as an RMS norm.
    pub fn run(&self, backend: &mut B, input: &B::Tensor, out: &mut B::Tensor) {
        backend.rms_norm(input, &self.weight, self.eps, out);
    }
}

/// Reads the residual stream `[n, hidden]` into `out`, through `norm` if there is one.
pub(crate) fn read_stream<B: Backend>(
    backend: &mut B,
    norm: Option<&Norm<B>>,
    residual: &mut B::Tensor,
    out: &mut B::Tensor,
) {
    match norm {
        None => backend.place_columns(residual, out, 0),
        Some(norm) if norm.bias.is_none() => norm.run(backend, residual, out),
        Some(norm) => {
            let end = BlockEnd {
                output: None,
                next: Some(norm.operand()),
            };
            backend.end_block(residual, None, end, out);
        }
    }
}
