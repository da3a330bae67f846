//! Mixtures of experts: routes, products of each expert with the rows that chose it, weighed sums.

mod elsewhere;
mod exact;
mod gates;

use std::ops::Range;

use lockstep_backend::{
    Axis, CheckpointDtype, E2m1, E8m0, Exchange as _, ExpertSpace, Experts, Holds, HostBlock,
    HostFloats, HostMatrix, HostMxfp4, Linear, Memory as _, Mxfp4Group, Ops as _, Owners,
    WeightFormat,
};
use lockstep_backend_cuda::{
    Buffer, CollectiveOptions, CudaBackend, CudaMatrix, CudaOptions, CudaTensor, Element,
};
use lockstep_collective::Single;
use lockstep_types::{Dtype, ExpertGate, RouterWeights, Routing};

use crate::support::{ELEMENTS, Noise, SEEDS, assert_close, bits, rounded, tolerance};

/// Inputs, columns of an expert, and outputs. None of them fills a tile or a chunk.
const IN: usize = 150;
const COLUMNS: usize = 37;
const OUT: usize = 70;

/// Rows, experts that are chosen from, and that a row chooses. Tiles have 8, 8, 16, 32 and 64 rows.
const SIZES: [(usize, usize, usize); 5] =
    [(1, 8, 2), (9, 40, 3), (33, 9, 3), (40, 4, 2), (70, 3, 3)];

fn backend(element: Element) -> CudaBackend {
    let options = CudaOptions {
        ordinal: 0,
        dtype: match element {
            Element::F32 => Dtype::Float32,
            Element::Bf16 => Dtype::Bfloat16,
        },
        kernels: None,
        graphs: Vec::new(),
        collectives: CollectiveOptions::default(),
    };
    CudaBackend::new(&options, Box::new(Single::new())).expect("a device")
}

fn matrix(gpu: &mut CudaBackend, format: WeightFormat, values: &[f32], cols: usize) -> CudaMatrix {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    gpu.load_matrix(&host(&bytes, cols), format).expect("room")
}

/// A matrix of 32-bit floats on the host.
fn host(bytes: &[u8], cols: usize) -> HostMatrix<'_> {
    HostMatrix::Floats(HostFloats {
        cols,
        dtype: CheckpointDtype::F32,
        blocks: vec![HostBlock {
            bytes,
            offset: 0,
            stride: 4 * cols,
            rows: bytes.len() / (4 * cols),
        }],
    })
}

/// Values rounded to MXFP4, which are exact in every type.
fn mxfp4(values: &[f32], cols: usize) -> Vec<f32> {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (matrix, mut rounded) = (host(&bytes, cols), Vec::new());
    for row in 0..matrix.rows() {
        for from in (0..cols).step_by(32) {
            let group = Mxfp4Group::of(&matrix, row, from);
            let value = |code: &u8| E2m1(*code).value() * E8m0(group.exponent).value();
            rounded.extend(group.codes.iter().map(value).take(cols - from));
        }
    }
    rounded
}

/// An array of these values, or of NaNs.
fn tensor(
    gpu: &mut CudaBackend,
    (rows, width): (usize, usize),
    holds: Holds,
    values: Option<&[f32]>,
) -> CudaTensor {
    let mut tensor = gpu.tensor(rows, width, holds).expect("room");
    let poison = vec![f32::NAN; rows * width];
    gpu.upload(&mut tensor, values.unwrap_or(&poison));
    tensor
}

fn read(gpu: &mut CudaBackend, x: &CudaTensor) -> Vec<f32> {
    let mut logits = gpu
        .tensor(x.rows(), x.width(), Holds::Logits)
        .expect("room");
    gpu.place_columns(x, &mut logits, 0);
    let (mut space, rows) = (Vec::new(), [0..x.rows(); 1]);
    let owners = Owners {
        widths: &[x.width()],
        rows: &rows,
    };
    let found = gpu.gather_to_host(Axis::Alone, &logits, owners, &mut space);
    found.expect("a copy").to_vec()
}

/// One expert's gate and up, and its projection behind them.
struct Expert {
    gate_up: Vec<f32>,
    down: Vec<f32>,
}

/// A mixture and its rows, on the host.
pub struct Case {
    element: Element,
    rows: usize,
    active: usize,
    shared: usize,
    routing: Routing,
    correction: Option<Vec<f32>>,
    /// Factors of the weights.
    scales: Option<Vec<f32>>,
    gate: ExpertGate,
    /// Biases of gates and ups, and of the projections behind them.
    biases: Option<[Vec<f32>; 2]>,
    x: Vec<f32>,
    scores: Vec<f32>,
    experts: Vec<Expert>,
}

/// A mixture's weights on the device.
struct Loaded {
    correction: Option<Buffer<f32>>,
    scales: Option<Buffer<f32>>,
    gate_up: Vec<CudaMatrix>,
    down: Vec<CudaMatrix>,
}

impl Case {
    /// Makes `rows` rows. Every third row prefers the first experts, so that some experts have
    /// many rows and others none. Multiples of five have clamped gates and biases, other multiples
    /// of eleven have GELU. Multiples of three rows, or of four, have factors of weights.
    fn new(
        element: Element,
        (rows, count, active): (usize, usize, usize),
        noise: &mut Noise,
    ) -> Self {
        let shared = rows % 2;
        let mut scores = noise.floats(rows * count);
        for row in scores.chunks_mut(count).step_by(3) {
            row[0] += 3.0;
            row[active - 1] += 2.0;
        }
        let correction = (active == 3).then(|| noise.floats(count));
        let factors = rows.is_multiple_of(3) || rows.is_multiple_of(4);
        let all = count + shared;
        let biased = rows.is_multiple_of(5);
        let biases = biased.then(|| [2 * COLUMNS, OUT].map(|len| noise.floats(all * len)));
        let mut weights = |len| -> Vec<f32> {
            let small: Vec<f32> = noise.floats(len).iter().map(|x| x / 8.0).collect();
            rounded(element, &small)
        };
        let expert = |_| Expert {
            gate_up: weights(2 * COLUMNS * IN),
            down: weights(OUT * COLUMNS),
        };
        Self {
            element,
            rows,
            active,
            shared,
            routing: Routing {
                weights: match active % 2 {
                    0 => RouterWeights::Softmax,
                    _ => RouterWeights::Sigmoid,
                },
                renormalized: count % 2 == 1,
                factor: [1.0, 1.75][active % 2],
                corrected: active == 3,
                groups: None,
            },
            correction,
            scales: factors.then(|| Noise(rows as u64).floats(count)),
            gate: match (biased, rows % 11) {
                (true, _) => ExpertGate::Clamped {
                    limit: 1.5,
                    alpha: 1.702,
                },
                (false, 0) => ExpertGate::GeluTanh,
                (false, _) => ExpertGate::Silu,
            },
            biases,
            experts: (0..all).map(expert).collect(),
            x: rounded(element, &noise.floats(rows * IN)),
            scores,
        }
    }

    /// Number of experts that are chosen from.
    fn count(&self) -> usize {
        self.experts.len() - self.shared
    }

    /// Returns the same mixture with weights that are exact in MXFP4.
    fn in_mxfp4(mut self) -> Self {
        for Expert { gate_up, down } in &mut self.experts {
            *gate_up = mxfp4(gate_up, IN);
            *down = mxfp4(down, COLUMNS);
        }
        self
    }

    fn load(&self, gpu: &mut CudaBackend) -> Loaded {
        self.load_as(gpu, WeightFormat::Float)
    }

    fn load_as(&self, gpu: &mut CudaBackend, format: WeightFormat) -> Loaded {
        let [correction, scales] = [&self.correction, &self.scales]
            .map(|values| Some(gpu.load_vector(values.as_ref()?).expect("room")));
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in &self.experts {
            gate_up.push(matrix(gpu, format, &expert.gate_up, IN));
            down.push(matrix(gpu, format, &expert.down, COLUMNS));
        }
        Loaded {
            correction,
            scales,
            gate_up,
            down,
        }
    }

    /// Runs the operation over some of the rows.
    fn run(&self, gpu: &mut CudaBackend, w: &Loaded, rows: Range<usize>) -> Vec<f32> {
        self.run_here(gpu, w, rows, 0..self.count(), self.shared)
    }

    /// Runs the operation with the experts `here` of those that are chosen from, and `shared` ones.
    fn run_here(
        &self,
        gpu: &mut CudaBackend,
        w: &Loaded,
        rows: Range<usize>,
        here: Range<usize>,
        shared: usize,
    ) -> Vec<f32> {
        let (count, len) = (self.count(), rows.len());
        let choices = len * (self.active + shared);
        let part = |all: &[f32], width| all[rows.start * width..rows.end * width].to_vec();
        let (x, scores) = (part(&self.x, IN), part(&self.scores, count));
        let x = tensor(gpu, (len, IN), Holds::Operand, Some(&x));
        let mut scores = tensor(gpu, (len, count), Holds::Sum, Some(&scores));
        let mut out = tensor(gpu, (len, OUT), Holds::Sum, None);
        let mut gate_up = tensor(gpu, (choices, self.before()), Holds::Sum, None);
        let mut activated = tensor(gpu, (choices, COLUMNS), Holds::Operand, None);
        let mut products = tensor(gpu, (choices, OUT), Holds::Sum, None);
        let space = ExpertSpace {
            gate_up: &mut gate_up,
            activated: &mut activated,
            products: &mut products,
        };
        // A rank has the biases of its own experts.
        let biases = [0, 1].map(|of| {
            let all = &self.biases.as_ref()?[of];
            let each = all.len() / w.gate_up.len();
            let own = &all[here.start * each..(here.end + shared) * each];
            Some(gpu.load_vector(own).expect("room"))
        });
        let experts = Experts {
            scored: count,
            first: here.start,
            active: self.active,
            shared,
            routing: self.routing,
            correction: w.correction.as_ref(),
            scales: w.scales.as_ref(),
            gate_up: &w.gate_up[here.start..here.end + shared],
            gate_up_bias: biases[0].as_ref(),
            gate: self.gate,
            down: &w.down[here.start..here.end + shared],
            down_bias: biases[1].as_ref(),
        };
        gpu.experts(&x, &mut scores, experts, space, &mut out)
            .expect("launches");
        read(gpu, &out)
    }

    /// Compares all rows of a mixture in MXFP4 with those of the same floats, bit for bit. Rows
    /// alone have the same bits.
    fn check_packed(&self, gpu: &mut CudaBackend) {
        let formats = [WeightFormat::Float, WeightFormat::Mxfp4];
        let [floats, packed] = formats.map(|format| self.load_as(gpu, format));
        let expected = self.run(gpu, &floats, 0..self.rows);
        for range in [0..self.rows, self.rows - 1..self.rows] {
            let own = &expected[range.start * OUT..range.end * OUT];
            let found = self.run(gpu, &packed, range.clone());
            assert_eq!(
                bits(&found),
                bits(own),
                "{:?} {range:?}: other bits",
                self.element
            );
        }
    }

    /// Compares all rows with plain loops.
    fn check(&self, gpu: &mut CudaBackend) {
        let loaded = self.load(gpu);
        let found = self.run(gpu, &loaded, 0..self.rows);
        let tolerance = tolerance(self.element) * self.gate_error();
        for (row, found) in found.chunks(OUT).enumerate() {
            assert_close(found, &self.exact(row), tolerance);
        }
    }
}

/// Tiles of every size, under several orders.
#[test]
fn experts_are_those_of_plain_loops() {
    for element in ELEMENTS {
        let mut gpu = backend(element);
        for (seed, sizes) in SEEDS.into_iter().cycle().zip(SIZES) {
            let _order = lockstep_fake_cuda::order(seed);
            Case::new(element, sizes, &mut Noise(seed)).check(&mut gpu);
        }
    }
}

/// Experts in MXFP4 take their 4.25 bits for a value, and have the bits of the same experts in
/// floats, in tiles of every size.
#[test]
fn packed_experts_have_the_bits_of_floats() {
    for element in ELEMENTS {
        let mut gpu = backend(element);
        for (seed, sizes) in SEEDS.into_iter().cycle().zip(SIZES) {
            let _order = lockstep_fake_cuda::order(seed);
            let case = Case::new(element, sizes, &mut Noise(seed)).in_mxfp4();
            case.check_packed(&mut gpu);
        }
        let matrix = matrix(&mut gpu, WeightFormat::Mxfp4, &[0.5; 3 * 256], 256);
        assert_eq!(8 * gpu.matrix_bytes(&matrix), 3 * 256 * 17 / 4);
    }
}

/// Exponents are taken from the whole range: those of infinite numbers, those of numbers that are
/// not normal, and the one that is no number.
#[test]
fn every_exponent_is_exact() {
    const EXPONENTS: [u8; 14] = [0, 1, 2, 3, 100, 126, 127, 128, 129, 130, 252, 253, 254, 255];
    for element in ELEMENTS {
        let mut gpu = backend(element);
        let mut case = Case::new(element, (4, 3, 2), &mut Noise(3));
        case.scales = None;
        case.experts
            .iter_mut()
            .for_each(|of| of.gate_up.fill(0.125));
        let mut mixture = case.load(&mut gpu);
        let codes: Vec<u8> = (0..OUT * 32).map(|at| (at * 37 + at / 32) as u8).collect();
        let exponents: Vec<u8> = (0..2 * OUT).map(|at| EXPONENTS[at / 2 % 14]).collect();
        let block = |bytes, stride| HostBlock {
            bytes,
            offset: 0,
            stride,
            rows: OUT,
        };
        let stored = HostMatrix::Mxfp4(HostMxfp4 {
            cols: COLUMNS,
            skipped: 0,
            blocks: vec![block(&codes, 32)],
            exponents: vec![block(&exponents, 2)],
        });
        let mut found = [WeightFormat::Float, WeightFormat::Mxfp4].map(|format| {
            let matrices = 0..case.experts.len();
            let load = |_| gpu.load_matrix(&stored, format).expect("room");
            mixture.down = matrices.map(load).collect();
            case.run(&mut gpu, &mixture, 0..4)
        });
        for found in found.iter_mut().flatten().filter(|value| value.is_nan()) {
            *found = f32::NAN;
        }
        assert_eq!(bits(&found[1]), bits(&found[0]), "{element:?}: other bits");
        let of = |kind: fn(&f32) -> bool| found[0].iter().filter(|value| kind(value)).count();
        assert!(of(|x| x.is_nan()) > 0 && of(|x| x.is_infinite()) > 0);
        assert!(of(|x| x.is_finite() && *x != 0.0) > found[0].len() / 2);
    }
}

/// A row's bits depend neither on other rows nor on tiles: together there are tiles of 64 rows,
/// alone tiles of 8.
#[test]
fn a_row_does_not_depend_on_its_company() {
    for element in ELEMENTS {
        let mut gpu = backend(element);
        let case = Case::new(element, (70, 3, 2), &mut Noise(5));
        let loaded = case.load(&mut gpu);
        let together = case.run(&mut gpu, &loaded, 0..70);
        for range in [0..1, 1..2, 5..17, 20..60, 69..70] {
            let _order = lockstep_fake_cuda::order(range.end as u64);
            let own = &together[range.start * OUT..range.end * OUT];
            let found = case.run(&mut gpu, &loaded, range.clone());
            assert_eq!(bits(&found), bits(own), "{element:?} {range:?}: other bits");
        }
    }
}

/// All experts score alike, or are worth alike by their corrections: the lowest are chosen.
#[test]
fn of_equal_experts_the_lowest_are_chosen() {
    let mut gpu = backend(Element::F32);
    for count in [12, 40, 64] {
        let mut case = Case::new(Element::F32, (6, count, 2), &mut Noise(7));
        case.routing.renormalized = true;
        let loaded = case.load(&mut gpu);
        case.scores.fill(0.25);
        let tied = case.run(&mut gpu, &loaded, 0..6);
        for scores in case.scores.chunks_mut(count) {
            scores[..2].fill(9.0);
        }
        let lowest = case.run(&mut gpu, &loaded, 0..6);
        assert_eq!(bits(&tied), bits(&lowest), "{count} experts");
    }
}

/// A router that gives no numbers spoils its own row and no other.
#[test]
fn a_row_that_is_not_finite_spoils_itself_alone() {
    let mut gpu = backend(Element::F32);
    for active in [2, 3] {
        let mut case = Case::new(Element::F32, (5, 9, active), &mut Noise(9));
        let loaded = case.load(&mut gpu);
        let expected = case.run(&mut gpu, &loaded, 0..5);
        for bad in [f32::NAN, f32::INFINITY] {
            case.scores[9 + 4] = bad;
            let found = case.run(&mut gpu, &loaded, 0..5);
            for (row, (found, expected)) in found.chunks(OUT).zip(expected.chunks(OUT)).enumerate()
            {
                match row {
                    1 => assert!(found.iter().all(|value| value.is_nan()), "{found:?}"),
                    _ => assert_eq!(bits(found), bits(expected)),
                }
            }
        }
    }
}

/// A router's weights are not rounded, whatever the type of operands, and a row's scores do not
/// depend on other rows.
#[test]
fn routers_multiply_without_rounding() {
    for element in ELEMENTS {
        let mut gpu = backend(element);
        for (seed, (rows, outputs, inputs)) in (1..).zip([(1, 9, 64), (3, 6, 150), (37, 11, 260)]) {
            let _order = lockstep_fake_cuda::order(seed);
            let noise = &mut Noise(seed);
            let w = noise.floats(outputs * inputs);
            let x = rounded(element, &noise.floats(rows * inputs));
            let router = matrix(&mut gpu, WeightFormat::Float32, &w, inputs);
            assert_eq!(gpu.matrix_bytes(&router), 4 * outputs * inputs);
            let biases = (seed % 2 == 1).then(|| noise.floats(outputs));
            let bias = biases.as_ref();
            let bias = bias.map(|values| gpu.load_vector(values).expect("room"));
            let mut score = |x: &[f32]| {
                let rows = x.len() / inputs;
                let x = tensor(&mut gpu, (rows, inputs), Holds::Operand, Some(x));
                let mut out = tensor(&mut gpu, (rows, outputs), Holds::Sum, None);
                let router = Linear {
                    weight: &router,
                    bias: bias.as_ref(),
                };
                gpu.matmul(&x, router, &mut out);
                read(&mut gpu, &out)
            };
            let found = score(&x);
            let dot = |at: usize| -> f64 {
                let x = &x[at / outputs * inputs..][..inputs];
                let w = &w[at % outputs * inputs..][..inputs];
                let terms = x.iter().zip(w);
                let sum: f64 = terms.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let bias = |biases: &Vec<f32>| f64::from(biases[at % outputs]);
                sum + biases.as_ref().map_or(0.0, bias)
            };
            let exact: Vec<f64> = (0..rows * outputs).map(dot).collect();
            assert_close(&found, &exact, 1e-5);
            let last = score(&x[(rows - 1) * inputs..]);
            assert_eq!(bits(&last), bits(&found[(rows - 1) * outputs..]));
        }
    }
}

#[test]
fn no_rows_are_fine() {
    let mut gpu = backend(Element::Bf16);
    let case = Case::new(Element::Bf16, (2, 8, 2), &mut Noise(3));
    let loaded = case.load(&mut gpu);
    assert!(case.run(&mut gpu, &loaded, 1..1).is_empty());
}

/// A mixture of each kind, with tiles of every size.
pub fn every_kernel() {
    for element in ELEMENTS {
        let mut gpu = backend(element);
        // In 32-bit floats tiles differ in nothing that sanitizers see.
        let sizes = match element {
            Element::Bf16 => &SIZES[..],
            Element::F32 => &SIZES[..1],
        };
        for sizes in sizes {
            let case = Case::new(element, *sizes, &mut Noise(1));
            let loaded = case.load(&mut gpu);
            let found = case.run(&mut gpu, &loaded, 0..case.rows);
            assert!(found.iter().all(|value| value.is_finite()));
            let ungated = Case::new(element, *sizes, &mut Noise(1)).without_gates();
            let loaded = ungated.load(&mut gpu);
            let found = ungated.run(&mut gpu, &loaded, 0..case.rows);
            assert!(found.iter().all(|value| value.is_finite()));
            let router = matrix(&mut gpu, WeightFormat::Float32, &case.x, IN);
            let x = tensor(&mut gpu, (case.rows, IN), Holds::Operand, Some(&case.x));
            let mut out = tensor(&mut gpu, (case.rows, case.rows), Holds::Sum, None);
            gpu.matmul(&x, Linear::unbiased(&router), &mut out);
            assert!(read(&mut gpu, &out).iter().all(|value| value.is_finite()));
            let packed = case.load_as(&mut gpu, WeightFormat::Mxfp4);
            let found = case.run(&mut gpu, &packed, 0..case.rows);
            assert!(found.iter().all(|value| value.is_finite()));
        }
    }
}

/// Small enough to run for every fault, with a case of each kind.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn experts_are_watched() {
    let mut gpu = backend(Element::Bf16);
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        for sizes in [(5, 40, 3), (4, 5, 2), (70, 3, 3)] {
            Case::new(Element::Bf16, sizes, &mut Noise(seed)).check(&mut gpu);
        }
        let ungated = Case::new(Element::Bf16, (5, 12, 3), &mut Noise(seed));
        ungated.without_gates().check(&mut gpu);
        let mut tied = Case::new(Element::Bf16, (4, 40, 2), &mut Noise(seed));
        tied.scores.fill(0.25);
        tied.check(&mut gpu);
    }
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn packed_experts_are_watched() {
    let mut gpu = backend(Element::Bf16);
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        for sizes in [(5, 12, 3), (70, 3, 3)] {
            let case = Case::new(Element::Bf16, sizes, &mut Noise(seed));
            case.in_mxfp4().check_packed(&mut gpu);
        }
    }
}
