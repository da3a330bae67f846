//! Products compared with f64, the order of their sums, and the bits of a row in any company.

use lockstep_backend_cuda::{
    Buffer, Element, Floats, Operands, Product, Products, Rows, RowwiseOps,
};
use lockstep_types::Activation;

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, assert_close, bits, rounded};

/// Numbers of rows beyond few.
const MANY: [usize; 2] = [65, 130];

fn products(gpu: &Gpu, element: Element) -> Products {
    Products::new(&gpu.context, &gpu.compiler, element).expect("kernels")
}

/// A product's weights, on the device and on the host.
struct Case {
    product: Product,
    w: Vec<f32>,
    bias: Vec<f32>,
    device_w: Floats,
    device_bias: Buffer<f32>,
}

impl Case {
    fn new(gpu: &Gpu, element: Element, outputs: usize, inputs: usize, noise: &mut Noise) -> Self {
        let w = rounded(element, &noise.floats(outputs * inputs));
        let bias = noise.floats(outputs);
        Self {
            product: Product {
                outputs,
                inputs,
                element,
            },
            device_w: gpu.floats(element, &w),
            device_bias: gpu.buffer(&bias),
            w,
            bias,
        }
    }

    /// Random rows of the product's width and type.
    fn rows(&self, rows: usize, noise: &mut Noise) -> Vec<f32> {
        rounded(
            self.product.element,
            &noise.floats(rows * self.product.inputs),
        )
    }

    fn operands<'a>(&'a self, x: &'a Floats, rows: usize) -> Operands<'a> {
        Operands {
            x,
            w: &self.device_w,
            bias: Some(&self.device_bias),
            product: self.product,
            rows: Rows::fixed(rows),
        }
    }

    /// `[rows, outputs]` by the device, from rows that the product's type holds.
    fn multiply(&self, gpu: &Gpu, products: &mut Products, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.product.inputs;
        let mut out = gpu.poisoned(Element::F32, rows * self.product.outputs);
        let x = gpu.floats(self.product.element, x);
        products
            .run(&gpu.stream, self.operands(&x, rows), &mut out)
            .expect("a product");
        gpu.read(&out)
    }

    /// The product in f64.
    fn exact(&self, x: &[f32]) -> Vec<f64> {
        self.each(x, |x, w, bias| {
            let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            terms.sum::<f64>() + f64::from(bias)
        })
    }

    /// The product in the documented order, with columns cut into `slices`. For bf16, the sums
    /// of tensor cores add one product after the other.
    fn in_order(&self, slices: usize, x: &[f32]) -> Vec<f32> {
        let chunk = 128 / self.product.element.bytes();
        let chunks = self.product.inputs.div_ceil(chunk);
        let end = |slice: usize| (chunks * slice / slices * chunk).min(self.product.inputs);
        self.each(x, |x, w, bias| {
            let slice = |slice: usize| {
                let columns = end(slice)..end(slice + 1);
                columns.fold(0f32, |sum, k| x[k].mul_add(w[k], sum))
            };
            (1..slices).fold(slice(0), |sum, number| sum + slice(number)) + bias
        })
    }

    fn each<T>(&self, x: &[f32], value: impl Fn(&[f32], &[f32], f32) -> T) -> Vec<T> {
        let inputs = self.product.inputs;
        let outputs = || self.w.chunks(inputs).zip(&self.bias);
        x.chunks(inputs)
            .flat_map(|x| {
                outputs()
                    .map(|(w, bias)| value(x, w, *bias))
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

#[test]
fn products_are_sums_of_products() {
    let gpu = Gpu::new();
    for element in ELEMENTS {
        let mut products = products(&gpu, element);
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            let mut noise = Noise(seed);
            for rows in [0, 1, noise.rows(), MANY[0], MANY[1]] {
                let case = Case::new(&gpu, element, noise.width(), noise.width(), &mut noise);
                let x = case.rows(rows, &mut noise);
                products.prepare(case.product, rows).expect("an algorithm");
                let found = case.multiply(&gpu, &mut products, &x);
                assert_close(&found, &case.exact(&x), 1e-3);
            }
        }
    }
}

/// Shapes around the borders of tiles, chunks and slices, at the rows that each kernel serves.
/// A real device's tensor cores have their own order inside of 16 columns. For f32 there is no
/// such order.
#[test]
fn few_rows_are_summed_in_the_order_that_is_documented() {
    let played = lockstep_fake_cuda::seed(1);
    let gpu = Gpu::new();
    const SHAPES: [(usize, usize); 7] = [
        (1, 1),
        (7, 9),
        (64, 64),
        (65, 72),
        (130, 200),
        (33, 536),
        (5, 1603),
    ];
    let (mut whole, mut cut) = (0, 0);
    for element in ELEMENTS {
        let mut products = products(&gpu, element);
        for (number, (outputs, inputs)) in SHAPES.into_iter().enumerate() {
            let _order = lockstep_fake_cuda::order(number as u64);
            let noise = &mut Noise(number as u64);
            let case = Case::new(&gpu, element, outputs, inputs, noise);
            let slices = products.slices(case.product);
            whole += usize::from(slices == 1);
            cut += usize::from(slices > 1);
            for rows in [1, 8, 9, 17, 33] {
                let x = case.rows(rows, noise);
                let found = case.multiply(&gpu, &mut products, &x);
                if played || element == Element::F32 {
                    assert_eq!(bits(&found), bits(&case.in_order(slices, &x)));
                }
                assert_close(&found, &case.exact(&x), 1e-3);
            }
        }
    }
    assert!(whole > 0 && cut > 0, "columns in one slice and in several");
}

/// Every number of rows and any place among them, in one slice and in several, with rows that
/// are copied 16 bytes at a time and rows that are not.
#[test]
fn a_row_has_the_same_bits_in_any_company_of_few() {
    let gpu = Gpu::new();
    for element in ELEMENTS {
        let mut products = products(&gpu, element);
        for (seed, (outputs, inputs)) in [(9, 136), (5, 601)].into_iter().enumerate() {
            let _order = lockstep_fake_cuda::order(seed as u64);
            let noise = &mut Noise(7);
            let case = Case::new(&gpu, element, outputs, inputs, noise);
            let x = case.rows(64, noise);
            let all = case.multiply(&gpu, &mut products, &x);
            for rows in 1..=64 {
                // Rows rotated by a changing number, so that each has been at many places.
                let turned = |of: &[f32], width: usize| {
                    let first = 37 * rows % 64;
                    let turned = [&of[first * width..], of].concat();
                    turned[..rows * width].to_vec()
                };
                let found = case.multiply(&gpu, &mut products, &turned(&x, inputs));
                assert_eq!(bits(&found), bits(&turned(&all, outputs)), "{rows} rows");
            }
        }
    }
}

#[test]
fn many_rows_have_the_same_bits_in_any_company_that_shares_their_algorithm() {
    let gpu = Gpu::new();
    let mut products = products(&gpu, Element::Bf16);
    let noise = &mut Noise(7);
    let case = Case::new(&gpu, Element::Bf16, 33, 70, noise);
    let x = case.rows(128, noise);
    let together = case.multiply(&gpu, &mut products, &x);
    for rows in [65, 97, 127] {
        let found = case.multiply(&gpu, &mut products, &x[..rows * 70]);
        assert_eq!(bits(&found), bits(&together[..rows * 33]));
    }
}

/// For any kernel and any number of parts, rows beyond the device's count stay. Weights are
/// read once for each share of present rows.
#[test]
fn rows_that_are_counted_read_the_weights_that_they_need() {
    let gpu = Gpu::new();
    let read = || lockstep_fake_cuda::fetched(c"product_");
    for element in ELEMENTS {
        let mut products = products(&gpu, element);
        for (outputs, inputs) in [(130, 64), (22, 640)] {
            let noise = &mut Noise(3);
            let case = Case::new(&gpu, element, outputs, inputs, noise);
            let x = case.rows(130, noise);
            let share = |rows: &[f32], products: &mut Products| case.multiply(&gpu, products, rows);
            let few: Vec<f32> = x
                .chunks(64 * inputs)
                .flat_map(|rows| share(rows, &mut products))
                .collect();
            let x = gpu.floats(element, &x);
            let weights = (outputs * inputs * element.bytes()) as u64;
            for (most, there) in [(8, 0), (8, 3), (64, 0), (130, 0), (130, 1), (130, 64)]
                .into_iter()
                .chain([(130, 65), (130, 130), (1, 9)])
            {
                let _order = lockstep_fake_cuda::order(there as u64);
                let counts = gpu.buffer(&[there as u32]);
                let operands = Operands {
                    rows: Rows::counted(most, &counts, 0),
                    ..case.operands(&x, most)
                };
                let there = there.min(most);
                let before = read();
                let mut out = gpu.poisoned(Element::F32, most * outputs);
                products
                    .run(&gpu.stream, operands, &mut out)
                    .expect("a product");
                let found = gpu.read(&out);
                let (found, behind) = found.split_at(there * outputs);
                let what = format!("{there} of {most} rows, {outputs} x {inputs}");
                assert_eq!(bits(found), bits(&few[..there * outputs]), "{what}");
                assert!(behind.iter().all(|value| value.is_nan()), "{what}");
                if let (Some(before), Some(now)) = (before, read()) {
                    // Beside the weights, each tile of outputs reads the rows.
                    let tiles = outputs.div_ceil(if most > 16 { 128 } else { 64 });
                    let rows = there * tiles * inputs * element.bytes();
                    let shares = there.div_ceil(64) as u64;
                    assert_eq!(now - before, shares * weights + rows as u64, "{what}");
                }
            }
        }
    }
}

#[test]
fn gates_of_rows_that_are_counted_have_the_bits_of_few() {
    let gpu = Gpu::new();
    for element in ELEMENTS {
        let mut products = products(&gpu, element);
        let (outputs, inputs, noise) = (130, 64, &mut Noise(5));
        let case = Case::new(&gpu, element, outputs, inputs, noise);
        let x = case.rows(130, noise);
        let mut gated = |rows: &[f32], counted: Option<&Buffer<u32>>| {
            let most = rows.len() / inputs;
            let x = gpu.floats(element, rows);
            let all = Rows::fixed(most);
            let operands = Operands {
                rows: counted.map_or(all, |counts| Rows::counted(most, counts, 0)),
                ..case.operands(&x, most)
            };
            let mut space = gpu.poisoned(Element::F32, most * outputs);
            let mut out = gpu.poisoned(element, most * outputs / 2);
            let left = products.gated(
                &gpu.stream,
                operands,
                Activation::Silu,
                &mut space,
                &mut out,
            );
            assert!(left.expect("a product").is_none(), "there is one slice");
            gpu.read(&out)
        };
        let few: Vec<f32> = x
            .chunks(64 * inputs)
            .flat_map(|rows| gated(rows, None))
            .collect();
        for there in [0, 64, 100, 130] {
            let found = gated(&x, Some(&gpu.buffer(&[there as u32])));
            let (found, behind) = found.split_at(there * outputs / 2);
            assert_eq!(bits(found), bits(&few[..there * outputs / 2]));
            assert!(behind.iter().all(|value| value.is_nan()));
        }
    }
}

/// Operations behind a product give the same bits if they read the sums in the form that the
/// product leaves.
#[test]
fn what_follows_a_product_has_the_bits_of_the_operations_one_by_one() {
    let gpu = Gpu::new();
    let stream = &gpu.stream;
    for element in ELEMENTS {
        let mut products = products(&gpu, element);
        let operations = RowwiseOps::new(&gpu.context, &gpu.compiler, element).expect("kernels");
        // One slice and several, on the fake device; rows that are normed four values at a
        // time, and one that is not.
        let shapes = [(70, 40), (21, 600), (22, 640)];
        for (turn, (width, inputs)) in shapes.into_iter().enumerate() {
            let noise = &mut Noise(turn as u64);
            let case = Case::new(&gpu, element, 2 * width, inputs, noise);
            for rows in [1, 12, 30, 64, 70] {
                let _order = lockstep_fake_cuda::order(rows as u64);
                let x = gpu.floats(element, &case.rows(rows, noise));
                let operands = case.operands(&x, rows);
                let all = Rows::fixed(rows);
                let mut sums = gpu.poisoned(Element::F32, rows * 2 * width);
                let mut space = gpu.poisoned(Element::F32, rows * 2 * width);
                products
                    .run(stream, operands, &mut sums)
                    .expect("a product");

                let gates = || gpu.poisoned(element, rows * width);
                let (mut plain, mut fused) = (gates(), gates());
                operations
                    .gate(stream, &sums, Activation::Silu, width, all, &mut plain)
                    .expect("a launch");
                let left =
                    products.gated(stream, operands, Activation::Silu, &mut space, &mut fused);
                if let Some(sums) = left.expect("a product") {
                    operations
                        .gate(stream, sums, Activation::Silu, width, all, &mut fused)
                        .expect("a launch");
                }
                assert_eq!(bits(&gpu.read(&fused)), bits(&gpu.read(&plain)));

                let residual = noise.floats(rows * 2 * width);
                let weight = gpu.buffer(&noise.floats(2 * width));
                let normed = |sums: lockstep_backend_cuda::Sums<'_>| {
                    let mut residual = gpu.floats(Element::F32, &residual);
                    let mut out = gpu.poisoned(element, rows * 2 * width);
                    operations
                        .add_rms_norm(stream, &mut residual, sums, &weight, 1e-5, all, &mut out)
                        .expect("a launch");
                    [gpu.read(&residual), gpu.read(&out)].map(|values| bits(&values))
                };
                let plain = normed((&sums).into());
                let fused = products.sums(stream, operands, &mut space);
                assert_eq!(normed(fused.expect("a product")), plain);
            }
        }
    }
}

/// Prepared products don't ask the heuristic again. Later matrices are prepared for as many
/// rows. Few rows need no algorithm.
#[test]
fn algorithms_are_chosen_before_they_are_used() {
    let Some(before) = lockstep_fake_cuda::heuristics() else {
        return; // A real library counts nothing.
    };
    let gpu = Gpu::new();
    let mut products = products(&gpu, Element::F32);
    let noise = &mut Noise(1);
    let cases = [8, 9].map(|outputs| Case::new(&gpu, Element::F32, outputs, 24, noise));
    products
        .prepare(cases[0].product, 64)
        .expect("an algorithm");
    let few = lockstep_fake_cuda::heuristics();
    assert_eq!(few, Some(before));
    products.prepare_all(300).expect("algorithms");
    products.prepare(cases[1].product, 1).expect("an algorithm");
    let asked = lockstep_fake_cuda::heuristics();
    for rows in [1, 64, 65, 200, 300, 512] {
        for case in &cases {
            case.multiply(&gpu, &mut products, &case.rows(rows, &mut Noise(1)));
        }
    }
    assert_eq!(lockstep_fake_cuda::heuristics(), asked);
}

/// Of the algorithms for 65 to 128 rows, some serve 128 rows only.
#[test]
fn an_algorithm_serves_the_fewest_rows_too() {
    let gpu = Gpu::new();
    let mut products = products(&gpu, Element::Bf16);
    for outputs in [7, 8] {
        let case = Case::new(&gpu, Element::Bf16, outputs, 24, &mut Noise(2));
        products.prepare(case.product, 128).expect("an algorithm");
        for rows in [65, 99, 100, 128] {
            let x = case.rows(rows, &mut Noise(1));
            let found = case.multiply(&gpu, &mut products, &x);
            assert!(found.iter().all(|value| value.is_finite()));
        }
    }
}

/// Small enough to run for every fault, with a case of each kind.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn few_rows_are_watched() {
    let gpu = Gpu::new();
    let mut products = products(&gpu, Element::Bf16);
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        let noise = &mut Noise(seed);
        for (rows, outputs, inputs) in [(3, 70, 520), (11, 9, 603)] {
            let case = Case::new(&gpu, Element::Bf16, outputs, inputs, noise);
            let x = case.rows(rows, noise);
            let found = case.multiply(&gpu, &mut products, &x);
            assert_close(&found, &case.exact(&x), 1e-3);
        }
    }
}
