//! Products against f64, and the bits of a row in company.

use lockstep_backend_cuda::{Element, Product, Products};

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, assert_close, bits, rounded};

/// `[rows, outputs]` by the device, of operands of the product's type.
fn multiply(
    gpu: &Gpu,
    products: &mut Products,
    product: Product,
    x: &[f32],
    w: &[f32],
) -> Vec<f32> {
    let rows = x.len() / product.inputs;
    let mut out = gpu.poisoned(Element::F32, rows * product.outputs);
    let (x, w) = (
        gpu.floats(product.element, x),
        gpu.floats(product.element, w),
    );
    products
        .run(&gpu.stream, &x, &w, product, rows, &mut out)
        .expect("a product");
    gpu.read(&out)
}

#[test]
fn products_are_sums_of_products() {
    let gpu = Gpu::new();
    let mut products = Products::new(&gpu.context).expect("products");
    for element in ELEMENTS {
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            let mut noise = Noise(seed);
            for rows in [0, 1, noise.rows(), 65, 130] {
                let product = Product {
                    outputs: noise.width(),
                    inputs: noise.width(),
                    element,
                };
                let x = rounded(element, &noise.floats(rows * product.inputs));
                let w = rounded(element, &noise.floats(product.outputs * product.inputs));
                products.prepare(product, rows).expect("an algorithm");
                let found = multiply(&gpu, &mut products, product, &x, &w);
                let mut wanted = Vec::new();
                for x in x.chunks(product.inputs) {
                    for w in w.chunks(product.inputs) {
                        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                        wanted.push(terms.sum());
                    }
                }
                assert_close(&found, &wanted, 1e-3);
            }
        }
    }
}

/// What was prepared is not asked for again; matrices that come later are
/// prepared for as many rows.
#[test]
fn algorithms_are_chosen_before_they_are_used() {
    let Some(_) = lockstep_fake_cuda::heuristics() else {
        return; // A real library counts nothing.
    };
    let gpu = Gpu::new();
    let mut products = Products::new(&gpu.context).expect("products");
    let product = |outputs| Product {
        outputs,
        inputs: 24,
        element: Element::F32,
    };
    products.prepare(product(8), 1).expect("an algorithm");
    products.prepare_all(300).expect("algorithms");
    products.prepare(product(9), 1).expect("an algorithm");
    let asked = lockstep_fake_cuda::heuristics();
    for rows in [1, 64, 65, 200, 300, 512] {
        for outputs in [8, 9] {
            let x = Noise(1).floats(rows * 24);
            let w = Noise(2).floats(outputs * 24);
            multiply(&gpu, &mut products, product(outputs), &x, &w);
        }
    }
    assert_eq!(lockstep_fake_cuda::heuristics(), asked);
}

/// Of one algorithm for 1 to 64 rows some serve 64 alone.
#[test]
fn an_algorithm_serves_the_fewest_rows_too() {
    let gpu = Gpu::new();
    let mut products = Products::new(&gpu.context).expect("products");
    for outputs in [7, 8] {
        let product = Product {
            outputs,
            inputs: 24,
            element: Element::Bf16,
        };
        products.prepare(product, 64).expect("an algorithm");
        let w = Noise(2).floats(outputs * 24);
        for rows in [1, 2, 16, 17, 64] {
            let x = Noise(1).floats(rows * 24);
            let found = multiply(&gpu, &mut products, product, &x, &w);
            assert!(found.iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company_that_shares_its_algorithm() {
    let gpu = Gpu::new();
    let mut products = Products::new(&gpu.context).expect("products");
    let mut noise = Noise(7);
    let product = Product {
        outputs: 33,
        inputs: 70,
        element: Element::Bf16,
    };
    let w = noise.floats(product.outputs * product.inputs);
    let x = noise.floats(64 * product.inputs);
    let together = multiply(&gpu, &mut products, product, &x, &w);
    for rows in [1, 3, 17, 63] {
        let some = &x[..rows * product.inputs];
        let found = multiply(&gpu, &mut products, product, some, &w);
        assert_eq!(bits(&found), bits(&together[..rows * product.outputs]));
    }
}
