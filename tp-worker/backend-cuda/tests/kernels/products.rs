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
            let _ = lockstep_fake_cuda::seed(seed);
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
