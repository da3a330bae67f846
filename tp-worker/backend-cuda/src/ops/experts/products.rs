//! Products of each expert with the rows that chose it, compiled when a model first asks for them.

use std::sync::Arc;

use lockstep_backend::HostMxfp4;
use lockstep_types::{Activation, ExpertGate};

use super::lists::Lists;
use super::parameters::ExpertProduct;
use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::ops::number_of;
use crate::ops::products::few::Sizes;
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{CudaMatrix, Element, MatrixForm, blocks};

/// Threads of a block.
const THREADS: u32 = 128;
/// Kernels, with their tiles.
const FLOATS: [Sizes; 4] = Sizes::named(["experts_8", "experts_16", "experts_32", "experts_64"]);
const MXFP4: [Sizes; 4] = Sizes::named([
    "experts_mxfp4_8",
    "experts_mxfp4_16",
    "experts_mxfp4_32",
    "experts_mxfp4_64",
]);
/// Number of the clamped gate, which is no activation's, as in `experts.cuh`.
const CLAMPED: u32 = 1 << 31;

/// Columns of packed weights that a block stages at a time, as in `mxfp4.cuh`, and the bytes of
/// an output's part of them.
const PACKED_COLUMNS: usize = 128;
const PACKED_BYTES: usize = PACKED_COLUMNS / 2 + PACKED_COLUMNS / HostMxfp4::GROUP;

/// Kernels that multiply rows by matrices of experts in one form, for operands of one type.
pub(crate) struct ExpertProducts {
    operand: Element,
    form: MatrixForm,
    kernels: [(Sizes, Kernel<ExpertProduct>); 4],
}

/// A product of all experts.
pub(super) struct Grouped<'a> {
    /// A matrix of each expert.
    pub matrices: &'a [CudaMatrix],
    /// Biases of their outputs, one expert behind the other.
    pub biases: Option<&'a Buffer<f32>>,
    /// Address of the list with each place's row of the input; 0 if they are one.
    pub order: u64,
    /// Function from gates and what they let through, which are one half of the outputs each, or of
    /// all outputs where there are no gates.
    pub gate: Option<ExpertGate>,
}

impl Grouped<'_> {
    /// Number of outputs behind a gate.
    fn outputs(&self) -> usize {
        let projections = self.gate.map_or(1, |gate| gate.projections());
        self.matrices[0].rows / projections
    }

    fn biases(&self) -> u64 {
        let all = self.matrices.len() * self.matrices[0].rows;
        let fits = self.biases.is_none_or(|biases| biases.len() == all);
        assert!(fits, "each output of an expert has a bias, or none has");
        self.biases.map_or(0, Buffer::address)
    }
}

impl ExpertProducts {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub(crate) fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
        form: MatrixForm,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(operand, form);
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        let kernel = |sizes: Sizes| -> Result<_, CudaError> {
            let kernel = module.kernel(sizes.name, THREADS, shared_bytes(&sizes, operand, form))?;
            Ok((sizes, kernel))
        };
        let [first, second, third, fourth] = sizes(form).map(kernel);
        Ok(Self {
            operand,
            form,
            kernels: [first?, second?, third?, fourth?],
        })
    }

    /// Returns true if the kernels multiply by matrices of this form.
    pub(crate) fn serve(&self, form: MatrixForm) -> bool {
        self.form == form
    }

    /// Multiplies the rows of each tile by its expert's matrix.
    pub(super) fn multiply(
        &self,
        stream: &Stream,
        of: &Grouped<'_>,
        lists: &Lists,
        x: u64,
        out: u64,
    ) -> Result<(), CudaError> {
        let form = of.matrices[0].form;
        assert!(form == self.form, "these kernels are for {:?}", self.form);
        let (outputs, inputs) = (of.outputs(), of.matrices[0].cols);
        let aligned = (inputs * self.operand.bytes()).is_multiple_of(16);
        let function = Function::of(of.gate);
        let parameters = ExpertProduct {
            x,
            w: CudaMatrix::addresses(stream, of.matrices)?,
            biases: of.biases(),
            order: of.order,
            tiles: lists.tiles,
            count: lists.count,
            out,
            outputs: outputs as u32,
            inputs: inputs as u32,
            gated: function.gated,
            aligned: u32::from(aligned),
            limit: function.limit,
            alpha: function.alpha,
            activated: function.activated,
            pad: 0,
        };
        let [smaller @ .., largest] = &self.kernels;
        let fits = |(sizes, _): &&(Sizes, Kernel<ExpertProduct>)| lists.height <= sizes.rows;
        let (sizes, kernel) = smaller.iter().find(fits).unwrap_or(largest);
        let tiles = blocks(of.matrices[0].rows, sizes.outputs);
        // SAFETY: the caller's arrays have room for all places.
        unsafe { kernel.launch(stream, [tiles, lists.most_tiles as u32, 1], &parameters) }
    }
}

/// Function behind a product, in numbers as kernels have them.
#[derive(Debug, Default)]
struct Function {
    gated: u32,
    limit: f32,
    alpha: f32,
    activated: u32,
}

impl Function {
    fn of(gate: Option<ExpertGate>) -> Self {
        let mut numbers = Self::default();
        match gate {
            None => {}
            Some(ExpertGate::Silu) => numbers.gated = number_of(Activation::Silu),
            Some(ExpertGate::GeluTanh) => numbers.gated = number_of(Activation::GeluTanh),
            Some(ExpertGate::Clamped { limit, alpha }) => {
                (numbers.gated, numbers.limit, numbers.alpha) = (CLAMPED, limit, alpha);
            }
            Some(ExpertGate::Ungated(activation)) => numbers.activated = number_of(activation),
        }
        numbers
    }
}

/// Kernels for matrices of a form, with their tiles.
fn sizes(form: MatrixForm) -> [Sizes; 4] {
    match form {
        MatrixForm::Mxfp4 => MXFP4,
        MatrixForm::Floats | MatrixForm::Router => FLOATS,
    }
}

/// Bytes of shared memory of a block.
fn shared_bytes(sizes: &Sizes, operand: Element, form: MatrixForm) -> usize {
    if form != MatrixForm::Mxfp4 {
        return sizes.shared_bytes();
    }
    let stages = match operand {
        Element::Bf16 => sizes.stages - 1,
        Element::F32 => 2,
    };
    let rows = sizes.rows * PACKED_COLUMNS * operand.bytes();
    stages * (sizes.outputs * PACKED_BYTES + rows)
}

/// Source to compile, with its macros.
pub(crate) fn source(operand: Element, form: MatrixForm) -> (&'static Source, Defines) {
    let is_bf16 = u32::from(operand == Element::Bf16);
    let defines = vec![
        ("OPERAND", operand.name().to_owned()),
        ("OPERAND_IS_BF16", is_bf16.to_string()),
        ("TRIGGERS_AT_HALF", "0".to_owned()),
    ];
    let source = match form {
        MatrixForm::Mxfp4 => &kernels::EXPERTS_MXFP4,
        MatrixForm::Floats | MatrixForm::Router => &kernels::EXPERTS,
    };
    (source, defines)
}

/// Name, threads and bytes of shared memory of each kernel.
#[cfg(test)]
pub(crate) fn launched(operand: Element, form: MatrixForm) -> [(&'static str, usize, usize); 4] {
    let bytes = |sizes: &Sizes| shared_bytes(sizes, operand, form);
    sizes(form).map(|sizes| (sizes.name, THREADS as usize, bytes(&sizes)))
}
