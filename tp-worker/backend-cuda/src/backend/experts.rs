//! Mixtures of experts.

use std::sync::Arc;

use lockstep_backend::{ExpertSpace, Experts, Linear};

use super::CudaBackend;
use crate::error::CudaError;
use crate::ops::{ExpertOps, ExpertProducts, MixtureSpace};
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, CudaTensor, MatrixForm, RowsParameter};

impl CudaBackend {
    /// Returns the product of a router.
    pub(super) fn score_experts(
        &mut self,
        x: &CudaTensor,
        w: Linear<'_, CudaMatrix, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (router, rows) = (w.weight, self.rows_there(x.rows()));
        x.expect(rows.most(), router.cols, "the router's input");
        out.expect(rows.most(), router.rows, "the router's output");
        let (experts, out) = (self.mixtures()?, &mut out.floats);
        experts.score(&self.stream, &x.floats, w, rows, out)
    }

    /// See [`lockstep_backend::Ops::experts`].
    pub(super) fn run_experts(
        &mut self,
        x: &CudaTensor,
        scores: &mut CudaTensor,
        w: Experts<'_, CudaMatrix, Buffer<f32>>,
        space: ExpertSpace<'_, CudaTensor>,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let rows = self.rows_there(x.rows());
        let (most, choices) = (rows.most(), rows.most() * w.taken());
        let (gate_up, down) = (&w.gate_up[0], &w.down[0]);
        let ExpertSpace {
            gate_up: lists,
            activated,
            products,
        } = space;
        x.expect(most, gate_up.cols, "the input of experts");
        scores.expect(most, w.scored, "a router's scores");
        lists.expect(choices, gate_up.rows, "gate and up of experts");
        activated.expect(choices, down.cols, "activated columns of experts");
        products.expect(choices, down.rows, "results of experts");
        out.expect(most, down.rows, "the mixture's output");
        let space = MixtureSpace {
            x: &x.floats,
            scores: &scores.floats,
            lists: &mut lists.floats,
            activated: &mut activated.floats,
            products: &mut products.floats,
            out: &mut out.floats,
        };
        let kernels = [w.gate_up, w.down].map(|own| self.expert_products(own[0].form));
        let [first, second] = kernels;
        let kernels = [&*first?, &*second?];
        let mixtures = self.mixtures()?;
        mixtures.run(&self.stream, &w, kernels, rows, space)
    }

    /// Returns the kernels that multiply by matrices of a form. The first call compiles them.
    fn expert_products(&mut self, form: MatrixForm) -> Result<Arc<ExpertProducts>, CudaError> {
        let made = self.expert_products.iter().find(|made| made.serve(form));
        if let Some(made) = made {
            return Ok(made.clone());
        }
        let (context, compiler) = (self.stream.context(), &self.compiler);
        let made = Arc::new(ExpertProducts::new(context, compiler, self.operand, form)?);
        self.expert_products.push(made.clone());
        Ok(made)
    }

    /// Rows of an operation on `rows` rows. Where they are the tokens of a batch that was padded,
    /// only those that there are: others would choose experts, whose weights would be read.
    fn rows_there(&self, rows: usize) -> RowsParameter {
        let counted = self.chains.rows(rows);
        let attended = self.attended.filter(|tokens| tokens.most() == rows);
        match attended {
            Some(tokens) if !counted.are_counted() => tokens,
            _ => counted.parameter(),
        }
    }

    /// Returns the kernels of mixtures. The first call compiles them.
    fn mixtures(&mut self) -> Result<Arc<ExpertOps>, CudaError> {
        let made = match &self.experts {
            Some(made) => made.clone(),
            None => {
                let (context, compiler) = (self.stream.context(), &self.compiler);
                Arc::new(ExpertOps::new(context, compiler, self.operand)?)
            }
        };
        Ok(self.experts.insert(made).clone())
    }
}
