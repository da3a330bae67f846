//! Chains that a draft's passes make by themselves.

use lockstep_backend::{DraftChains, PassKey};

use super::CudaBackend;
use crate::chains::ChainInputs;
use crate::inputs::Inputs;
use crate::tensor::CudaTensor;

impl DraftChains<CudaTensor, Inputs> for CudaBackend {
    fn begin(&mut self, verified: &Inputs, inputs: &mut Inputs, size: PassKey, first: usize) {
        let tokens = size.tokens * first;
        let mut inputs = ChainInputs {
            verified,
            draft: inputs,
            most: size.tokens,
        };
        let done = self.chains.begin(&self.stream, &mut inputs, tokens);
        self.keep(done);
    }

    fn advance(
        &mut self,
        logits: &CudaTensor,
        level: usize,
        verified: &mut Inputs,
        inputs: &mut Inputs,
        size: PassKey,
    ) {
        let mut inputs = ChainInputs {
            verified,
            draft: inputs,
            most: size.tokens,
        };
        let rows = (&logits.floats, logits.width());
        let done = self.chains.advance(&self.stream, rows, level, &mut inputs);
        self.keep(done);
    }
}
