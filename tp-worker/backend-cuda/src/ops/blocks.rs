//! Operations that blocks of some families need beside the rest. They are compiled when a model
//! first asks for one.

mod parameters;

use std::sync::Arc;

use lockstep_backend::{
    AttentionShape, BlockEnd, CountedKeys, LogitScaling, Norm, RmsNorm, WholeNorms,
};
use lockstep_types::Activation;

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::ops::{Sums, SumsParameter};
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, Rows, blocks};
use parameters::{Activate, EndBlock, JoinNorms, ScaleLogits, SigmoidGate, SquareSums, WholeNorm};

/// Threads of a block.
const THREADS: u32 = 256;

/// Operations on rows of the residual stream, of heads and of logits.
///
/// # Panics
/// Operations panic where arrays are too short or of another type.
pub struct BlockOps {
    operand: Element,
    end_block: Kernel<EndBlock>,
    join_norms: Kernel<JoinNorms>,
    square_sums: Kernel<SquareSums>,
    whole_norm: Kernel<WholeNorm>,
    activate: Kernel<Activate>,
    sigmoid_gate: Kernel<SigmoidGate>,
    scale_logits: Kernel<ScaleLogits>,
}

impl BlockOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(operand);
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        Ok(Self {
            operand,
            end_block: module.kernel("end_block", THREADS, 0)?,
            join_norms: module.kernel("join_norms", THREADS, 0)?,
            square_sums: module.kernel("square_sums", THREADS, 0)?,
            whole_norm: module.kernel("whole_norm", THREADS, 0)?,
            activate: module.kernel("activate", THREADS, 0)?,
            sigmoid_gate: module.kernel("sigmoid_gate", THREADS, 0)?,
            scale_logits: module.kernel("scale_logits", THREADS, 0)?,
        })
    }

    /// Ends a block: see [`lockstep_backend::Ops::end_block`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn end_block(
        &self,
        stream: &Stream,
        residual: &mut Floats,
        delta: Option<Sums<'_>>,
        (end, width): (BlockEnd<'_, Buffer<f32>>, usize),
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let most = rows.most();
        residual.expect(Element::F32, most * width, "the residual");
        out.expect(self.operand, most * width, "the norm's output");
        if let Some(delta) = &delta {
            delta.expect(most, width, "the residual's delta");
        }
        let address = |vector: &Buffer<f32>| {
            assert!(vector.len() == width, "a norm is as wide as the residual");
            vector.address()
        };
        let norm = |norm: RmsNorm<'_, Buffer<f32>>| (address(norm.weight), norm.eps);
        let (output, output_eps) = end.output.map_or((0, 0.0), norm);
        let ((next, next_eps), bias) = match end.next {
            None => ((0, 0.0), 0),
            Some(Norm::Rms(rms)) => (norm(rms), 0),
            Some(Norm::Layer { norm: layer, bias }) => (norm(layer), address(bias)),
        };
        let parameters = EndBlock {
            residual: residual.address(),
            out: out.address(),
            delta: delta.map_or(SumsParameter::NONE, |delta| delta.parameter()),
            output,
            next,
            bias,
            rows: rows.parameter(),
            width: width as u32,
            output_eps,
            next_eps,
            pad: 0,
        };
        // SAFETY: all have room for `most` rows, and the residual is borrowed alone.
        unsafe {
            self.end_block
                .launch(stream, [most as u32, 1, 1], &parameters)
        }
    }

    /// Adds the norms of two outputs in `x`: see [`lockstep_backend::Ops::join_norms`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn join_norms(
        &self,
        stream: &Stream,
        x: &mut Floats,
        y: &Floats,
        [of_x, of_y]: [RmsNorm<'_, Buffer<f32>>; 2],
        rows: Rows<'_>,
    ) -> Result<(), CudaError> {
        let (most, width) = (rows.most(), of_x.weight.len());
        x.expect(Element::F32, most * width, "the output of a block");
        y.expect(
            Element::F32,
            most * width,
            "the output of the block beside it",
        );
        assert!(of_y.weight.len() == width, "both outputs are as wide");
        let parameters = JoinNorms {
            x: x.address(),
            y: y.address(),
            of_x: of_x.weight.address(),
            of_y: of_y.weight.address(),
            rows: rows.parameter(),
            width: width as u32,
            x_eps: of_x.eps,
            y_eps: of_y.eps,
            pad: 0,
        };
        // SAFETY: both have room for `most` rows, and `x` is borrowed alone.
        unsafe {
            self.join_norms
                .launch(stream, [most as u32, 1, 1], &parameters)
        }
    }

    /// Sums the squares of queries and of counted keys: see
    /// [`lockstep_backend::Ops::square_sums`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn square_sums(
        &self,
        stream: &Stream,
        qkv: &Floats,
        shape: &AttentionShape,
        counted: CountedKeys,
        rows: Rows<'_>,
        sums: &mut Floats,
    ) -> Result<(), CudaError> {
        let (most, width, dim) = (rows.most(), shape.qkv_width(), shape.head_dim);
        qkv.expect(Element::F32, most * width, "qkv");
        sums.expect(Element::F32, most * 2, "the sums of squares");
        let parameters = SquareSums {
            qkv: qkv.address(),
            sums: sums.address(),
            rows: rows.parameter(),
            width: width as u32,
            queries: (shape.heads * dim) as u32,
            keys: (shape.kv_heads * dim) as u32,
            head_dim: dim as u32,
            first: counted.first as u32,
            served: counted.served as u32,
            group: counted.group as u32,
            pad: 0,
        };
        // SAFETY: both have room for `most` rows.
        unsafe {
            self.square_sums
                .launch(stream, [most as u32, 1, 1], &parameters)
        }
    }

    /// Norms queries together and keys together: see [`lockstep_backend::Ops::whole_norm`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn whole_norm(
        &self,
        stream: &Stream,
        qkv: &mut Floats,
        shape: &AttentionShape,
        sums: &Floats,
        norms: &WholeNorms<'_, Buffer<f32>>,
        rows: Rows<'_>,
    ) -> Result<(), CudaError> {
        let (most, width, dim) = (rows.most(), shape.qkv_width(), shape.head_dim);
        qkv.expect(Element::F32, most * width, "qkv");
        sums.expect(Element::F32, most * 2, "the sums of squares");
        let columns = [shape.heads * dim, shape.kv_heads * dim];
        let weights = [norms.queries, norms.keys].map(Buffer::len);
        assert!(weights == columns, "a norm has a weight for each column");
        let parameters = WholeNorm {
            qkv: qkv.address(),
            sums: sums.address(),
            query_weight: norms.queries.address(),
            key_weight: norms.keys.address(),
            rows: rows.parameter(),
            width: width as u32,
            queries: columns[0] as u32,
            keys: columns[1] as u32,
            query_width: norms.widths[0] as f32,
            key_width: norms.widths[1] as f32,
            eps: norms.eps,
        };
        // SAFETY: all have room for `most` rows, and `qkv` is borrowed alone.
        unsafe {
            self.whole_norm
                .launch(stream, [most as u32, 1, 1], &parameters)
        }
    }

    /// `out = f(x)`; sums become operands.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn activate(
        &self,
        stream: &Stream,
        x: &Floats,
        activation: Activation,
        width: usize,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let most = rows.most();
        x.expect(Element::F32, most * width, "the activation's input");
        out.expect(self.operand, most * width, "the activation's output");
        let parameters = Activate {
            x: x.address(),
            out: out.address(),
            rows: rows.parameter(),
            width: width as u32,
            activation: number_of(activation),
        };
        // SAFETY: both have room for `most` rows.
        unsafe { self.activate.launch(stream, grid(most, width), &parameters) }
    }

    /// `out = out · σ(gate)`, with a gate for each column, or with one for all of them.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn sigmoid_gate(
        &self,
        stream: &Stream,
        (gate, gates): (&Floats, usize),
        width: usize,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let most = rows.most();
        assert!(
            [1, width].contains(&gates),
            "a gate is for a column or for all of them"
        );
        gate.expect(Element::F32, most * gates, "the output gate");
        out.expect(self.operand, most * width, "the gated output");
        let parameters = SigmoidGate {
            gate: gate.address(),
            out: out.address(),
            rows: rows.parameter(),
            width: width as u32,
            whole: (gates == width).into(),
        };
        let grid = grid(most, width);
        // SAFETY: both have room for `most` rows, and the output is borrowed alone.
        unsafe { self.sigmoid_gate.launch(stream, grid, &parameters) }
    }

    /// Divides logits, then bounds them.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn scale_logits(
        &self,
        stream: &Stream,
        logits: &mut Floats,
        scaling: LogitScaling,
        width: usize,
        rows: Rows<'_>,
    ) -> Result<(), CudaError> {
        let most = rows.most();
        logits.expect(Element::F32, most * width, "logits");
        let parameters = ScaleLogits {
            logits: logits.address(),
            rows: rows.parameter(),
            width: width as u32,
            divisor: scaling.divisor,
            softcap: scaling.softcap.unwrap_or_default(),
            pad: 0,
        };
        // SAFETY: the logits are borrowed alone.
        unsafe {
            self.scale_logits
                .launch(stream, grid(most, width), &parameters)
        }
    }
}

/// Source to compile, with its macros.
pub(crate) fn source(operand: Element) -> (&'static Source, Defines) {
    let defines = vec![("OPERAND", operand.name().to_owned())];
    (&kernels::BLOCKS, defines)
}

/// Number of an activation in kernels, as `sums.cuh` has them.
pub(crate) fn number_of(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 1,
        Activation::GeluTanh => 2,
        Activation::ReluSquared => 3,
    }
}

/// Grid of blocks: rows in x, columns in y.
fn grid(rows: usize, columns: usize) -> [u32; 3] {
    [rows as u32, blocks(columns, THREADS as usize), 1]
}
