//! RMS norm over the residual stream (Zhang and Sennrich, arXiv:1910.07467).

use lockstep_backend::{Backend, RmsNorm};

use super::parts::{Convert, Form, Listed, Tensors, VectorPart};

/// A norm's weights `[hidden]`, whole on every rank.
pub(crate) struct Norm<F: Form> {
    pub weight: F::Vector,
    /// Epsilon added to the mean square.
    pub eps: f32,
}

impl Norm<Listed> {
    /// Lists a norm of width `hidden` whose weights are the tensor `name`, without `.weight`.
    pub fn listed(name: &str, hidden: usize, eps: f32) -> Self {
        Self {
            weight: VectorPart::whole(format!("{name}.weight"), hidden),
            eps,
        }
    }
}

impl<F: Form> Tensors<F> for Norm<F> {
    type In<T: Form> = Norm<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Norm<C::To>, C::Error> {
        Ok(Norm {
            weight: to.vector(&self.weight)?,
            eps: self.eps,
        })
    }
}

impl<B: Backend> Norm<B> {
    /// Returns the norm as the backend's operations take it.
    pub fn operand(&self) -> RmsNorm<'_, B::Vector> {
        RmsNorm {
            weight: &self.weight,
            eps: self.eps,
        }
    }

    /// Norms the rows of `input` `[n, hidden]` into `out`.
    pub fn run(&self, backend: &mut B, input: &B::Tensor, out: &mut B::Tensor) {
        backend.rms_norm(input, &self.weight, self.eps, out);
    }
}
