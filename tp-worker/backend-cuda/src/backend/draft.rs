//! Chains and trees that a draft's passes make without the host.

use lockstep_backend::{
    Axis, BackendError, DraftChains, DraftTrees, Memory as _, PassKey, TreePass,
};

use super::CudaBackend;
use crate::drafting::{ChainInputs, Sources, TreeLevel};
use crate::ops::Indices;
use crate::passes::Inputs;
use crate::runtime::{Buffer, Stopwatch};
use crate::tensors::CudaTensor;

impl DraftChains<CudaTensor, Inputs, Buffer<f32>> for CudaBackend {
    fn load_ids(&mut self, ids: &[u32]) -> Result<Buffer<f32>, BackendError> {
        // Uploaded bit for bit, since only `advance` reads them.
        self.load_vector(bytemuck::cast_slice(ids))
    }

    fn take_sources(&mut self, x: &CudaTensor, inputs: &Inputs, out: &mut CudaTensor) {
        let (rows, width) = (inputs.tokens(), x.width());
        out.expect(rows.most(), width, "what a first pass goes on from");
        let sources = Some(Indices::Sources(inputs));
        let (stream, out) = (&self.stream, &mut out.floats);
        let done = self
            .operations
            .gather_rows(stream, &x.floats, width, sources, rows, out);
        self.keep(done);
    }

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
        (logits, ids): (&CudaTensor, Option<&Buffer<f32>>),
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
        let rows = (&logits.floats, logits.width(), ids);
        let done = self.chains.advance(&self.stream, rows, level, &mut inputs);
        self.keep(done);
    }

    fn start_clock(&mut self) {
        if let Some(stopwatch) = &mut self.stopwatch {
            let done = stopwatch.start(&self.stream);
            self.keep(done);
        }
    }

    fn stop_clock(&mut self) {
        if let Some(stopwatch) = &mut self.stopwatch {
            let done = stopwatch.stop(&self.stream);
            self.keep(done);
        }
    }

    fn clocked_us(&mut self) -> Result<u32, BackendError> {
        let stopwatch = self.stopwatch.as_mut();
        Ok(stopwatch.map_or(Ok(0), Stopwatch::read)?)
    }

    fn tell(
        &mut self,
        axis: Axis,
        verified: &mut Inputs,
        tokens: usize,
    ) -> Result<(), BackendError> {
        self.failures()?;
        let (words, told) = verified.drafted_words(tokens);
        Ok(self.exchange.tell(&self.stream, axis, words, told)?)
    }

    fn trees(&mut self) -> Option<&mut dyn DraftTrees<CudaTensor, Inputs, Buffer<f32>>> {
        Some(self)
    }
}

impl DraftTrees<CudaTensor, Inputs, Buffer<f32>> for CudaBackend {
    fn grow(
        &mut self,
        (logits, ids): (&CudaTensor, Option<&Buffer<f32>>),
        number: usize,
        verified: &mut Inputs,
        inputs: &mut Inputs,
        pass: TreePass,
    ) {
        let level = TreeLevel {
            verified,
            draft: inputs,
            most: pass.size.tokens,
            branches: pass.branches,
            level: number,
            counts: self.chains.counts(),
        };
        let rows = (&logits.floats, logits.width(), ids);
        let done = self.trees.grow(&self.stream, rows, level);
        let wanted = pass.size.tokens * pass.branches;
        self.chains.level((number + 1) * wanted, wanted);
        self.keep(done);
    }

    fn take_parents(
        &mut self,
        roots: &CudaTensor,
        outputs: &CudaTensor,
        verified: &Inputs,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let width = roots.width();
        outputs.expect(outputs.rows(), width, "outputs of a pass");
        out.expect(inputs.tokens().most(), width, "what tokens go on from");
        let sources = Sources {
            roots: &roots.floats,
            outputs: &outputs.floats,
            rows: [roots.rows(), outputs.rows()],
            width,
        };
        let done =
            self.trees
                .take_parents(&self.stream, &sources, verified, inputs, &mut out.floats);
        self.keep(done);
    }
}
