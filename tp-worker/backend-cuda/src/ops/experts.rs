//! Mixtures of experts: a router's scores, routes, products of each expert with the rows that chose
//! it, and weighed sums. Compiled when a model first asks for one.
//!
//! All launches follow from the number of rows that there may be, never from what rows choose, so a
//! pass with a mixture is recorded as any other.

mod lists;
mod parameters;
pub(crate) mod products;

use std::sync::Arc;

use lockstep_backend::{Experts, ExpertsShape, Linear};
use lockstep_types::{ExpertGroups, GroupWorth, RouterWeights};

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{CudaMatrix, Element, Floats, RowsParameter, blocks};
use lists::{Lists, height};
use parameters::{Route, Score, Sort, Weigh};
use products::{ExpertProducts, Grouped};

/// Largest number of experts of a layer, with shared ones, as in `routes.cuh`.
const MOST_EXPERTS: usize = 1024;
/// Threads of a block in `route.cu`, and of one that sorts.
const THREADS: u32 = 128;
const SORTERS: u32 = 512;
/// Warps of a block in `route.cu`.
const WARPS: usize = 4;
/// Kernels of a router, with the rows that a warp multiplies.
const SCORES: [(&str, usize); 3] = [("score_1", 1), ("score_4", 4), ("score_16", 16)];

/// Most columns of an expert's matrices. Rows of some are made one by one on their way to the device.
pub(crate) const MOST_EXPERT_COLUMNS: usize = 1 << 20;
/// Least outputs of an expert's first product, which are columns times projections: lists of its
/// routes lie where these will.
const LEAST_OUTPUTS: usize = 16;

/// Checks that the kernels run a rank's mixture of experts.
///
/// # Errors
/// [`CudaError::Unsupported`] for more experts, or narrower or wider ones, than they serve.
pub fn check_experts(shape: &ExpertsShape) -> Result<(), CudaError> {
    let (count, columns) = (shape.count.max(shape.scored), shape.down.cols);
    let widest = columns.max(shape.gate_up.cols);
    if count > MOST_EXPERTS {
        return Err(CudaError::Unsupported(format!(
            "layers of {count} experts are not served on GPUs, which take {MOST_EXPERTS} at most: give --device cpu"
        )));
    }
    let least = LEAST_OUTPUTS / (shape.gate_up.rows / columns.max(1)).max(1);
    if columns < least {
        return Err(CudaError::Unsupported(format!(
            "experts of {columns} columns on a rank are too narrow for GPUs, which need {least}: give a \
             lower --tp-size, or --device cpu"
        )));
    }
    if widest > MOST_EXPERT_COLUMNS {
        return Err(CudaError::Unsupported(format!(
            "matrices of experts with {widest} columns are not served on GPUs, which take \
             {MOST_EXPERT_COLUMNS} at most: give --device cpu"
        )));
    }
    Ok(())
}

/// The kernels of mixtures of experts, for operands of one type.
///
/// A row's bits depend on the row and the weights alone, for any number of rows: a score, and every
/// sum of a product, has one order.
///
/// # Panics
/// Operations panic where arrays are too short or of another type.
pub(crate) struct ExpertOps {
    operand: Element,
    scores: [(usize, Kernel<Score>); 3],
    route: Kernel<Route>,
    sort: Kernel<Sort>,
    weigh: Kernel<Weigh>,
}

/// Activations of a mixture over some rows. A row has as many choices as it goes through experts.
pub(crate) struct MixtureSpace<'a> {
    /// Inputs `[rows, in]`.
    pub x: &'a Floats,
    /// Scores of the router, `[rows, experts]`.
    pub scores: &'a Floats,
    /// Space for lists of routes: the place of gate and up, `[choices, 2·m]`, which stay in
    /// registers.
    pub lists: &'a mut Floats,
    /// Activated columns, `[choices, m]`.
    pub activated: &'a mut Floats,
    /// Results of the experts, `[choices, out]`.
    pub products: &'a mut Floats,
    /// Weighed sums, `[rows, out]`.
    pub out: &'a mut Floats,
}

impl ExpertOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub(crate) fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(operand);
        let routes = Module::load(context, &compiler.compile(source, &defines)?)?;
        let score =
            |(name, rows)| -> Result<_, CudaError> { Ok((rows, routes.kernel(name, THREADS, 0)?)) };
        let [one, four, many] = SCORES.map(score);
        Ok(Self {
            operand,
            scores: [one?, four?, many?],
            route: routes.kernel("route", THREADS, 0)?,
            sort: routes.kernel("sort_choices", SORTERS, 0)?,
            weigh: routes.kernel("weigh_choices", THREADS, 0)?,
        })
    }

    /// `out = x · wᵀ + bias` with a router's weights, which are not rounded.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn score(
        &self,
        stream: &Stream,
        x: &Floats,
        Linear {
            weight: router,
            bias,
        }: Linear<'_, CudaMatrix, Buffer<f32>>,
        rows: RowsParameter,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let (most, outputs, inputs) = (rows.most(), router.rows, router.cols);
        x.expect(self.operand, most * inputs, "the router's input");
        router
            .floats()
            .expect(Element::F32, outputs * inputs, "a router");
        out.expect(Element::F32, most * outputs, "the router's output");
        assert!(
            bias.is_none_or(|bias| bias.len() == outputs),
            "a router has a bias for each expert"
        );
        let parameters = Score {
            x: x.address(),
            w: router.floats().address(),
            bias: bias.map_or(0, Buffer::address),
            out: out.address(),
            rows,
            outputs: outputs as u32,
            inputs: inputs as u32,
            aligned: u32::from(inputs.is_multiple_of(4)),
            pad: 0,
        };
        let [smaller @ .., largest] = &self.scores;
        let serves = |(each, _): &&(usize, Kernel<Score>)| most <= *each;
        let (each, kernel) = smaller.iter().find(serves).unwrap_or(largest);
        let grid = [blocks(outputs, WARPS), blocks(most, *each), 1];
        // SAFETY: all have room for `most` rows.
        unsafe { kernel.launch(stream, grid, &parameters) }
    }

    /// Runs a mixture behind its router: see [`lockstep_backend::Ops::experts`]. The kernels are
    /// those for gate and up, and for the projection behind them.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    ///
    /// # Panics
    /// If [`check_experts`] refuses the mixture.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        w: &Experts<'_, CudaMatrix, Buffer<f32>>,
        kernels: [&ExpertProducts; 2],
        rows: RowsParameter,
        space: MixtureSpace<'_>,
    ) -> Result<(), CudaError> {
        let (most, all) = (rows.most(), w.gate_up.len());
        assert!(all <= MOST_EXPERTS, "configuration refuses more experts");
        if most == 0 {
            return Ok(());
        }
        let MixtureSpace {
            x,
            scores,
            lists,
            activated,
            products,
            out,
        } = space;
        // An expert gets as many rows as it would with all experts here.
        let height = height(most * w.taken(), w.scored + w.shared);
        let lists = Lists::new(lists, most, w, height);
        self.choose(stream, w, rows, scores, &lists)?;
        self.sort(stream, w, rows, &lists)?;
        let (gate_up, down) = (&w.gate_up[0], &w.down[0]);
        let outputs = w.gate.projections() * down.cols;
        assert!(gate_up.rows == outputs, "gates let columns through");
        let first = Grouped {
            matrices: w.gate_up,
            biases: w.gate_up_bias,
            order: lists.order,
            gate: Some(w.gate),
        };
        x.expect(self.operand, most * gate_up.cols, "inputs of experts");
        activated.expect(self.operand, lists.choices * down.cols, "activated columns");
        let (from, to) = (x.address(), activated.address());
        kernels[0].multiply(stream, &first, &lists, from, to)?;
        let second = Grouped {
            matrices: w.down,
            biases: w.down_bias,
            order: 0,
            gate: None,
        };
        let len = lists.choices * down.rows;
        products.expect(Element::F32, len, "results of experts");
        let (from, to) = (activated.address(), products.address());
        kernels[1].multiply(stream, &second, &lists, from, to)?;
        out.expect(Element::F32, most * down.rows, "the mixture's output");
        let parameters = Weigh {
            products: products.address(),
            weights: lists.weights,
            places: lists.places,
            out: out.address(),
            rows,
            width: down.rows as u32,
            taken: w.taken() as u32,
        };
        let grid = [most as u32, blocks(down.rows, THREADS as usize), 1];
        // SAFETY: all have room for the choices of `most` rows.
        unsafe { self.weigh.launch(stream, grid, &parameters) }
    }

    /// Lists the experts of each row, with their weights.
    fn choose(
        &self,
        stream: &Stream,
        w: &Experts<'_, CudaMatrix, Buffer<f32>>,
        rows: RowsParameter,
        scores: &Floats,
        lists: &Lists,
    ) -> Result<(), CudaError> {
        let scored = w.scored;
        scores.expect(Element::F32, rows.most() * scored, "a router's scores");
        let of_all = |values: &Buffer<f32>| values.len() == scored;
        assert!(
            w.correction.is_none_or(of_all) && w.scales.is_none_or(of_all),
            "corrections and factors are of all experts"
        );
        assert!(
            w.active <= scored && w.first + w.held() <= scored,
            "a router scores its experts"
        );
        // All experts are one group where there are none.
        let groups = w.routing.groups.unwrap_or(ExpertGroups {
            count: 1,
            chosen: 1,
            worth: GroupWorth::Largest,
        });
        assert!(
            groups.count <= ExpertGroups::MOST && scored.is_multiple_of(groups.count),
            "configuration refuses other groups"
        );
        let parameters = Route {
            scores: scores.address(),
            correction: w.correction.map_or(0, Buffer::address),
            scales: w.scales.map_or(0, Buffer::address),
            experts: lists.experts,
            weights: lists.weights,
            rows,
            scored: scored as u32,
            active: w.active as u32,
            taken: w.taken() as u32,
            first: w.first as u32,
            held: w.held() as u32,
            sigmoid: u32::from(w.routing.weights == RouterWeights::Sigmoid),
            renormalized: u32::from(w.routing.renormalized),
            factor: w.routing.factor,
            groups: groups.count as u32,
            chosen_groups: groups.chosen as u32,
            two_largest: u32::from(groups.worth == GroupWorth::TwoLargest),
            pad: 0,
        };
        let grid = [blocks(rows.most(), WARPS), 1, 1];
        // SAFETY: the lists have room for the choices of all rows.
        unsafe { self.route.launch(stream, grid, &parameters) }
    }

    /// Sorts choices by expert, and cuts them into tiles.
    fn sort(
        &self,
        stream: &Stream,
        w: &Experts<'_, CudaMatrix, Buffer<f32>>,
        rows: RowsParameter,
        lists: &Lists,
    ) -> Result<(), CudaError> {
        let all = w.gate_up.len();
        let parameters = Sort {
            experts: lists.experts,
            places: lists.places,
            order: lists.order,
            tiles: lists.tiles,
            count: lists.count,
            rows,
            taken: w.taken() as u32,
            all: all as u32,
            height: lists.height as u32,
            pad: 0,
        };
        // SAFETY: the lists have room for all choices and tiles.
        unsafe { self.sort.launch(stream, [all as u32, 1, 1], &parameters) }
    }
}

/// Source of routes and sums to compile, with its macros.
pub(crate) fn source(operand: Element) -> (&'static Source, Defines) {
    let defines = vec![("OPERAND", operand.name().to_owned())];
    (&kernels::ROUTE, defines)
}
