//! Operations row by row: lookups, norms, activations, sums, copies.

mod copies;
mod joins;
mod parameters;

use std::sync::Arc;

use lockstep_types::Activation;

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::ops::{Sums, SumsParameter, number_of};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, Rows, blocks};
use parameters::{CopyRows, Embed, JoinColumns, RmsNorm, SiluMul};

pub(crate) use joins::JoinedRows;

/// Threads of a block.
const THREADS: u32 = 256;
/// Columns that the registers of `rms_norm`'s blocks hold; `rms_norm_wide` has more of them.
const NORM_COLUMNS: usize = 4096;

/// Operations of a model with weights and operands of one type. Sums (the residual stream and
/// the results of products) are f32.
///
/// # Panics
/// Operations panic where arrays are too short or of another type. Rows that lists on the
/// device name and that don't exist are skipped.
pub struct RowwiseOps {
    operand: Element,
    embed: Kernel<Embed>,
    copy_rows_16: Kernel<CopyRows>,
    copy_rows_4: Kernel<CopyRows>,
    copy_rows_2: Kernel<CopyRows>,
    rows_to_bf16: Kernel<CopyRows>,
    rows_to_f32: Kernel<CopyRows>,
    join_columns: Kernel<JoinColumns>,
    rms_norm: Kernel<RmsNorm>,
    rms_norm_wide: Kernel<RmsNorm>,
    silu_mul: Kernel<SiluMul>,
}

impl RowwiseOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
    ) -> Result<Self, CudaError> {
        let [rows, norm, elementwise] =
            sources(operand).map(|(source, defines)| -> Result<_, CudaError> {
                Module::load(context, &compiler.compile(source, &defines)?)
            });
        let (rows, norm, elementwise) = (rows?, norm?, elementwise?);
        Ok(Self {
            operand,
            embed: rows.kernel("embed", THREADS, 0)?,
            copy_rows_16: rows.kernel("copy_rows_16", THREADS, 0)?,
            copy_rows_4: rows.kernel("copy_rows_4", THREADS, 0)?,
            copy_rows_2: rows.kernel("copy_rows_2", THREADS, 0)?,
            rows_to_bf16: rows.kernel("rows_to_bf16", THREADS, 0)?,
            rows_to_f32: rows.kernel("rows_to_f32", THREADS, 0)?,
            join_columns: rows.kernel("join_columns", THREADS, 0)?,
            rms_norm: norm.kernel("rms_norm", THREADS, 0)?,
            rms_norm_wide: norm.kernel("rms_norm_wide", THREADS, 0)?,
            silu_mul: elementwise.kernel("silu_mul", THREADS, 0)?,
        })
    }

    /// Type of weights and operands.
    pub fn operand(&self) -> Element {
        self.operand
    }

    /// `out[i] = table[tokens[i] - first] · scale` for the tokens of a batch; zero if the token lies
    /// outside the table. `[table rows, width]` operands become `[tokens, width]` sums.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn embed(
        &self,
        stream: &Stream,
        table: &Floats,
        width: usize,
        (first, scale): (u32, f32),
        inputs: &Inputs,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let most = inputs.tokens().most();
        assert!(table.len().is_multiple_of(width), "a table has whole rows");
        table.expect(self.operand, 0, "the embedding table");
        out.expect(Element::F32, most * width, "the embedding's output");
        let parameters = Embed {
            table: table.address(),
            batch: inputs.address(),
            out: out.address(),
            first,
            table_rows: (table.len() / width) as u32,
            width: width as u32,
            most: most as u32,
            scale,
            pad: 0,
        };
        // SAFETY: `out` has room for all tokens, and rows outside the table are
        // not read.
        unsafe { self.embed.launch(stream, grid(most, width), &parameters) }
    }

    /// `out = x / rms(x) · weight` row by row; sums become operands.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn rms_norm(
        &self,
        stream: &Stream,
        x: &Floats,
        weight: &Buffer<f32>,
        eps: f32,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        // SAFETY: without a delta, `x` is read alone.
        unsafe { self.norm(stream, x, None, weight, eps, rows, out) }
    }

    /// `residual += delta`, then `out = rms_norm(residual)`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn add_rms_norm<'a>(
        &self,
        stream: &Stream,
        residual: &mut Floats,
        delta: impl Into<Sums<'a>>,
        weight: &Buffer<f32>,
        eps: f32,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        // SAFETY: `residual` is borrowed alone.
        unsafe { self.norm(stream, residual, Some(delta.into()), weight, eps, rows, out) }
    }

    /// # Safety
    /// Nobody else uses `x` if there is a `delta`, since the kernel writes `x` then.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    unsafe fn norm(
        &self,
        stream: &Stream,
        x: &Floats,
        delta: Option<Sums<'_>>,
        weight: &Buffer<f32>,
        eps: f32,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let (most, width) = (rows.most(), weight.len());
        x.expect(Element::F32, most * width, "the norm's input");
        out.expect(self.operand, most * width, "the norm's output");
        if let Some(delta) = delta {
            delta.expect(most, width, "the residual's delta");
        }
        let parameters = RmsNorm {
            x: x.address(),
            weight: weight.address(),
            out: out.address(),
            delta: delta.map_or(SumsParameter::NONE, |delta| delta.parameter()),
            rows: rows.parameter(),
            width: width as u32,
            eps,
        };
        let kernel = match width <= NORM_COLUMNS {
            true => &self.rms_norm,
            false => &self.rms_norm_wide,
        };
        // SAFETY: all have room for `most` rows as wide as the weight.
        unsafe { kernel.launch(stream, [most as u32, 1, 1], &parameters) }
    }

    /// `out = f(gate) · up` with the activation `f`. Sums `[rows, 2·width]`, the gate first,
    /// become operands `[rows, width]`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn gate<'a>(
        &self,
        stream: &Stream,
        gate_up: impl Into<Sums<'a>>,
        activation: Activation,
        width: usize,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let most = rows.most();
        let gate_up = gate_up.into();
        gate_up.expect(most, 2 * width, "gate and up");
        out.expect(self.operand, most * width, "the activation's output");
        let parameters = SiluMul {
            gate_up: gate_up.parameter(),
            out: out.address(),
            rows: rows.parameter(),
            width: width as u32,
            activation: number_of(activation),
        };
        // SAFETY: both have room for `most` rows.
        unsafe { self.silu_mul.launch(stream, grid(most, width), &parameters) }
    }
}

/// Sources to compile, each with its macros.
pub(crate) fn sources(operand: Element) -> [(&'static Source, Defines); 3] {
    let defines = vec![("OPERAND", operand.name().to_owned())];
    [&kernels::ROWS, &kernels::NORM, &kernels::ELEMENTWISE].map(|source| (source, defines.clone()))
}

/// Grid of blocks: rows in x, columns in y.
fn grid(rows: usize, columns: usize) -> [u32; 3] {
    [rows as u32, blocks(columns, THREADS as usize), 1]
}
