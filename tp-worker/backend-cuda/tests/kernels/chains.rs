//! Kernels behind kernels, which begin before those have ended where the device lets them.

use lockstep_backend_cuda::{CudaError, Element, Operands, Product, Products, Rows, RowwiseOps};
use lockstep_types::Activation;

use crate::faults::child;
use crate::support::{ELEMENTS, Gpu, Noise, SEEDS};

/// Rows of the chain, and width of its residual. On the fake device the first product has
/// several slices, which leave their sums in parts.
const ROWS: usize = 5;
const WIDTH: usize = 600;

/// Results of a chain, as bits: the residual, the second product, and the gates.
type Left = [Vec<u32>; 3];

/// Runs kernels as those of a layer, and calls `between` behind each.
fn chain(
    gpu: &Gpu,
    products: &mut Products,
    operations: &RowwiseOps,
    between: impl Fn() -> Result<(), CudaError>,
) -> Left {
    let (stream, element) = (&gpu.stream, operations.operand());
    let product = |outputs, inputs| Product {
        outputs,
        inputs,
        element,
    };
    let noise = &mut Noise(7);
    let x = gpu.floats(Element::F32, &noise.floats(ROWS * WIDTH));
    let (first, second) = (
        gpu.floats(element, &noise.floats(WIDTH * WIDTH)),
        gpu.floats(element, &noise.floats(WIDTH * WIDTH)),
    );
    let weight = gpu.buffer(&noise.floats(WIDTH));
    let mut residual = gpu.floats(Element::F32, &noise.floats(ROWS * WIDTH));
    let (mut rows, mut normed) = (
        gpu.poisoned(element, ROWS * WIDTH),
        gpu.poisoned(element, ROWS * WIDTH),
    );
    let (mut space, mut sums) = (
        gpu.poisoned(Element::F32, ROWS * WIDTH),
        gpu.poisoned(Element::F32, ROWS * WIDTH),
    );
    let mut gates = gpu.poisoned(element, ROWS * WIDTH / 2);
    let all = Rows::fixed(ROWS);
    let mut run = || -> Result<(), CudaError> {
        operations.cast(stream, &x, WIDTH, all, &mut rows)?;
        between()?;
        let operands = |x, w| Operands {
            x,
            w,
            bias: None,
            product: product(WIDTH, WIDTH),
            rows: all,
        };
        let parts = products.sums(stream, operands(&rows, &first), &mut space)?;
        between()?;
        operations.add_rms_norm(
            stream,
            &mut residual,
            parts,
            &weight,
            1e-5,
            all,
            &mut normed,
        )?;
        between()?;
        products.run(stream, operands(&normed, &second), &mut sums)?;
        between()?;
        operations.gate(stream, &sums, Activation::Silu, WIDTH / 2, all, &mut gates)?;
        between()
    };
    run().expect("launches");
    [&residual, &sums, &gates].map(|floats| {
        let values = gpu.read(floats);
        values.iter().map(|value| value.to_bits()).collect()
    })
}

/// Runs the chain in an order in which kernels begin early.
pub fn early(gpu: &Gpu, element: Element) {
    let mut products = Products::new(&gpu.context, &gpu.compiler, element).expect("kernels");
    let made = RowwiseOps::new(&gpu.context, &gpu.compiler, element);
    chain(gpu, &mut products, &made.expect("kernels"), || Ok(()));
}

#[test]
fn kernels_that_begin_early_have_the_bits_of_those_that_wait() {
    let gpu = Gpu::new();
    for element in ELEMENTS {
        let mut products = Products::new(&gpu.context, &gpu.compiler, element).expect("kernels");
        let made = RowwiseOps::new(&gpu.context, &gpu.compiler, element);
        let operations = made.expect("kernels");
        let expected = chain(&gpu, &mut products, &operations, || {
            gpu.stream.synchronize()
        });
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            let found = chain(&gpu, &mut products, &operations, || Ok(()));
            assert!(
                found == expected,
                "{element:?}: other bits with seed {seed}"
            );
        }
    }
}

/// A kernel that does not wait is found where it may begin early, and is as good as any where
/// it may not.
#[test]
fn kernels_begin_early_only_where_they_may() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device's compiler changes nothing.
    }
    const TEST: &str = "chains::kernels_that_begin_early_have_the_bits_of_those_that_wait";
    const SWITCH: &str = "LOCKSTEP_CUDA_PDL";
    let fault = "/ silu_mul(SiluMul/,/^}/s/begin_after_predecessors();//";
    let run = |environment: &[(&str, &str)]| child(fault, TEST, environment);
    for environment in [&[][..], &[(SWITCH, "1")]] {
        let (passed, text) = run(environment);
        assert!(
            !passed && text.contains("CUDA_ERROR_LAUNCH_FAILED"),
            "{text}"
        );
    }
    for environment in [(SWITCH, "0"), ("FAKE_CUDA_CAPABILITY", "89")] {
        let (passed, text) = run(&[environment]);
        assert!(passed, "{environment:?}: {text}");
    }
    let (passed, text) = child("", TEST, &[("LOCKSTEP_CUDA_PDL_TRIGGER", "half")]);
    assert!(passed, "{text}");
    let (passed, text) = run(&[(SWITCH, "0"), ("LOCKSTEP_CUDA_PDL_TRIGGER", "half")]);
    assert!(
        !passed && text.contains("leave LOCKSTEP_CUDA_PDL_TRIGGER out"),
        "{text}"
    );
    let (passed, text) = run(&[(SWITCH, "off")]);
    assert!(
        !passed && text.contains("LOCKSTEP_CUDA_PDL is `off`: give 0"),
        "{text}"
    );
}
