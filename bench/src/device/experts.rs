//! A mixture of experts: its router, its routes, the products of its experts and their sums.

use lockstep_backend::{
    BackendError, ExpertSpace, Experts, Holds, HostBlock, HostMatrix, HostMxfp4, Linear,
    RandomBlock, RandomMatrix, RandomNumbers, WeightFormat,
};
use lockstep_devices::Device;
use lockstep_types::{EngineConfig, ExpertTensors, ExpertsSpec, ModelConfig};

use super::kernels::Kernels;
use super::parts::{Alone, Line, Names};
use crate::kernels::{Matrix, filled};

const READS: &str = "read_all";
const ROUTES: Names = &["route", "sort_choices", READS];
const PRODUCTS: Names = &[
    "experts_8",
    "experts_16",
    "experts_32",
    "experts_64",
    "experts_mxfp4_8",
    "experts_mxfp4_16",
    "experts_mxfp4_32",
    "experts_mxfp4_64",
    READS,
];
const SUMS: Names = &["weigh_choices", READS];

/// Returns the experts of the first layer that is a mixture.
pub fn mixture(model: &ModelConfig) -> Option<&ExpertsSpec> {
    let mut layers = model.layers.iter();
    layers.find_map(|layer| layer.mlp.experts())
}

/// One layer's weights.
struct Layer<B: Device> {
    gate_up: Vec<B::Matrix>,
    down: Vec<B::Matrix>,
    /// Biases of both, if experts have some.
    biases: [Option<B::Vector>; 2],
}

/// Rows, and what becomes of them.
struct Rows<B: Device> {
    x: B::Tensor,
    scores: B::Tensor,
    gate_up: B::Tensor,
    activated: B::Tensor,
    products: B::Tensor,
    out: B::Tensor,
}

/// Bytes and operations of the parts of a mixture over some rows.
struct Sizes {
    rows: usize,
    hidden: usize,
    element: usize,
    /// Bits of a weight, with its part of an exponent: those of floats, or of MXFP4.
    weight_bits: f64,
    count: usize,
    width: usize,
    /// Projections that an expert has before its function.
    projections: usize,
    /// Experts that a row goes through, and those that any row goes through.
    taken: usize,
    busy: usize,
}

impl Sizes {
    fn of(spec: &ExpertsSpec, config: &EngineConfig, rows: usize) -> Self {
        let (shared, element) = (spec.shared_count(), config.dtype.bytes());
        Self {
            rows,
            hidden: config.model.hidden_size,
            element,
            weight_bits: match config.model.checkpoint.mxfp4() {
                Some(_) => 4.25,
                None => 8.0 * element as f64,
            },
            count: spec.count,
            width: spec.width,
            projections: spec.gate.projections(),
            taken: spec.taken(),
            busy: spec.count.min(rows * spec.active) + shared,
        }
    }

    fn choices(&self) -> usize {
        self.rows * self.taken
    }

    /// Scores, and lists of choices: experts, weights, places and rows.
    fn routes(&self) -> f64 {
        (4 * self.rows * self.count + 4 * 4 * self.choices()) as f64
    }

    /// Weights of the experts that rows go through, inputs, activated columns twice, and results.
    fn products(&self) -> f64 {
        let weights = self.weights(self.busy);
        let columns = 2 * self.width * self.element + 4 * self.hidden;
        let rows = self.rows * self.hidden * self.element + self.choices() * columns;
        weights + rows as f64
    }

    /// Weights of some experts.
    fn weights(&self, experts: usize) -> f64 {
        (experts * self.elements()) as f64 * self.weight_bits / 8.0
    }

    fn operations(&self) -> f64 {
        2.0 * self.choices() as f64 * self.elements() as f64
    }

    /// Elements of an expert's matrices.
    fn elements(&self) -> usize {
        (self.projections + 1) * self.width * self.hidden
    }

    /// Results of the experts, and sums.
    fn sums(&self) -> f64 {
        (4 * self.hidden * (self.choices() + self.rows)) as f64
    }
}

impl<B: Device> Kernels<'_, B> {
    /// Measures a mixture for each number of rows. Rows share experts as little as they can: with
    /// few of them, no two have an expert in common.
    pub fn experts(&mut self, spec: &ExpertsSpec, rows: &[usize]) -> anyhow::Result<()> {
        let all = Sizes::of(spec, self.config, 1).weights(spec.total());
        let layers = (0..self.bench.turns(all as usize) as u64).map(|key| self.layer(spec, key));
        let layers: Vec<Layer<B>> = layers.collect::<anyhow::Result<_>>()?;
        let router = self.router(spec)?;
        for &rows in rows {
            let sizes = Sizes::of(spec, self.config, rows);
            let mut arrays = self.rows_of(&sizes, spec)?;
            self.score(&sizes, &router, &mut arrays)?;
            self.mix(&sizes, spec, &layers, &mut arrays)?;
        }
        Ok(())
    }

    fn layer(&mut self, spec: &ExpertsSpec, key: u64) -> anyhow::Result<Layer<B>> {
        let hidden = self.config.model.hidden_size;
        let mut matrices = |name, rows, cols| -> anyhow::Result<Vec<B::Matrix>> {
            let of = Matrix { name, rows, cols };
            let keys = (0..spec.total() as u64).map(|expert| key << 32 | expert);
            keys.map(|key| self.expert(of, key)).collect()
        };
        let columns = spec.gate.projections() * spec.width;
        let gate_up = matrices("gate_up", columns, hidden)?;
        let down = matrices("down", hidden, spec.width)?;
        let bias = match spec.names.experts {
            ExpertTensors::Interleaved { bias, .. } => bias,
            ExpertTensors::Single { .. } | ExpertTensors::Stacked { .. } => false,
        };
        let mut biases = |len: usize| -> anyhow::Result<Option<B::Vector>> {
            let values = bias.then(|| vec![0.01; spec.total() * len]);
            let load = |values: Vec<f32>| self.bench.backend.load_vector(&values);
            Ok(values.map(load).transpose()?)
        };
        Ok(Layer {
            gate_up,
            down,
            biases: [biases(columns)?, biases(hidden)?],
        })
    }

    /// Loads a matrix of an expert, in the model's format. Packed ones have one row many times: to
    /// round as many numbers on the host would take longer than all measurements.
    fn expert(&mut self, of: Matrix, key: u64) -> anyhow::Result<B::Matrix> {
        if self.config.model.checkpoint.mxfp4().is_none() {
            return self.bench.matrix(of, key);
        }
        let groups = of.cols.div_ceil(HostMxfp4::GROUP);
        let codes: Vec<u8> = (0..groups * HostMxfp4::GROUP_BYTES)
            .map(|at| (key as usize + at * 37) as u8)
            .collect();
        let exponents = vec![118; groups];
        let row = |bytes| HostBlock {
            bytes,
            offset: 0,
            stride: 0,
            rows: of.rows,
        };
        let matrix = HostMatrix::Mxfp4(HostMxfp4 {
            cols: of.cols,
            skipped: 0,
            blocks: vec![row(&codes)],
            exponents: vec![row(&exponents)],
        });
        Ok(self
            .bench
            .backend
            .load_matrix(&matrix, WeightFormat::Mxfp4)?)
    }

    fn router(&mut self, spec: &ExpertsSpec) -> anyhow::Result<B::Matrix> {
        let cols = self.config.model.hidden_size;
        let block = RandomBlock {
            numbers: RandomNumbers::new(7, 1.0 / (cols as f32).sqrt()),
            first: 0,
            stride: cols,
            rows: spec.count,
        };
        let blocks = vec![block];
        let matrix = HostMatrix::Random(RandomMatrix { cols, blocks });
        let backend = &mut self.bench.backend;
        Ok(backend.load_matrix(&matrix, WeightFormat::Float32)?)
    }

    fn rows_of(&mut self, sizes: &Sizes, spec: &ExpertsSpec) -> anyhow::Result<Rows<B>> {
        let (backend, rows, choices) = (&mut self.bench.backend, sizes.rows, sizes.choices());
        let mut scores = backend.tensor(rows, spec.count, Holds::Sum)?;
        backend.write(&mut scores, |values| {
            for (row, scores) in values.chunks_mut(spec.count).enumerate() {
                scores.fill(0.0);
                let chosen = row * spec.active..(row + 1) * spec.active;
                chosen.for_each(|choice| scores[choice % spec.count] = 4.0);
            }
        });
        Ok(Rows {
            x: filled(backend, rows, sizes.hidden, Holds::Operand)?,
            scores,
            gate_up: backend.tensor(choices, sizes.projections * spec.width, Holds::Sum)?,
            activated: backend.tensor(choices, spec.width, Holds::Operand)?,
            products: backend.tensor(choices, sizes.hidden, Holds::Sum)?,
            out: backend.tensor(rows, sizes.hidden, Holds::Sum)?,
        })
    }

    fn score(
        &mut self,
        sizes: &Sizes,
        router: &B::Matrix,
        arrays: &mut Rows<B>,
    ) -> anyhow::Result<()> {
        let &Sizes {
            rows,
            hidden,
            count,
            element,
            ..
        } = sizes;
        let mut out = self.bench.backend.tensor(rows, count, Holds::Sum)?;
        let times = self.bench.times(2, |backend, _| {
            backend.matmul(&arrays.x, Linear::unbiased(router), &mut out);
        })?;
        self.keep(&Line {
            kernel: "experts, router".to_owned(),
            size: format!("{rows} x {hidden} x {count}"),
            times,
            bytes: (4 * count * hidden + rows * (element * hidden + 4 * count)) as f64,
            operations: 2.0 * rows as f64 * (hidden * count) as f64,
        })
    }

    /// Measures the mixture behind its router, whole and kernel by kernel.
    fn mix(
        &mut self,
        sizes: &Sizes,
        spec: &ExpertsSpec,
        layers: &[Layer<B>],
        arrays: &mut Rows<B>,
    ) -> anyhow::Result<()> {
        let size = format!(
            "{} x {} of {} x {}",
            sizes.rows, sizes.taken, sizes.count, sizes.width
        );
        let mut failed = None;
        let mut call = |backend: &mut B, number: usize| {
            let done = mix(backend, spec, &layers[number], arrays);
            failed = done.err().or(failed.take());
        };
        let times = self.bench.times(layers.len(), &mut call)?;
        self.keep(&Line {
            kernel: "experts".to_owned(),
            size: size.clone(),
            times,
            bytes: sizes.routes() + sizes.products() + sizes.sums(),
            operations: sizes.operations(),
        })?;
        for (names, label, bytes, operations) in [
            (ROUTES, "experts, routes", sizes.routes(), 0.0),
            (
                PRODUCTS,
                "experts, products",
                sizes.products(),
                sizes.operations(),
            ),
            (SUMS, "experts, sums", sizes.sums(), 0.0),
        ] {
            let of = Alone {
                names,
                label,
                size: size.clone(),
                arrays: layers.len(),
                once: false,
                bytes,
                operations,
            };
            self.alone(&of, &mut call)?;
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Runs a mixture behind its router.
fn mix<B: Device>(
    backend: &mut B,
    spec: &ExpertsSpec,
    layer: &Layer<B>,
    arrays: &mut Rows<B>,
) -> Result<(), BackendError> {
    let experts = Experts {
        scored: spec.count,
        first: 0,
        active: spec.active,
        shared: spec.shared_count(),
        routing: spec.routing,
        correction: None,
        scales: None,
        gate_up: &layer.gate_up,
        gate_up_bias: layer.biases[0].as_ref(),
        gate: spec.gate,
        down: &layer.down,
        down_bias: layer.biases[1].as_ref(),
    };
    let space = ExpertSpace {
        gate_up: &mut arrays.gate_up,
        activated: &mut arrays.activated,
        products: &mut arrays.products,
    };
    backend.experts(
        &arrays.x,
        &mut arrays.scores,
        experts,
        space,
        &mut arrays.out,
    )
}
