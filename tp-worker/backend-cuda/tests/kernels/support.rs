//! A device, made-up numbers, and tolerances of results.

use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;
use lockstep_backend::{Batch, InputLimits};
use lockstep_backend_cuda::{Buffer, Compiler, Context, Element, Floats, Inputs, Stream};

/// Seeds of orders of the work whose order CUDA leaves open.
pub const SEEDS: [u64; 3] = [1, 2, 3];
pub const ELEMENTS: [Element; 2] = [Element::F32, Element::Bf16];

pub struct Gpu {
    pub context: Arc<Context>,
    pub stream: Stream,
    pub compiler: Compiler,
}

impl Gpu {
    pub fn new() -> Self {
        let context = Context::open(0).expect("a device");
        Self {
            stream: Stream::new(&context).expect("a stream"),
            compiler: Compiler::new(context.gpu(), None).expect("a compiler"),
            context,
        }
    }

    pub fn buffer<T: Pod>(&self, values: &[T]) -> Buffer<T> {
        let mut buffer = Buffer::new(&self.context, values.len(), "a test's").expect("room");
        self.stream.upload(values, &mut buffer).expect("a copy");
        buffer
    }

    pub fn floats(&self, element: Element, values: &[f32]) -> Floats {
        let mut floats = self.poisoned(element, values.len());
        floats.upload(&self.stream, values).expect("a copy");
        floats
    }

    /// An array of NaNs.
    pub fn poisoned(&self, element: Element, len: usize) -> Floats {
        let mut floats = Floats::new(&self.context, element, len, "a test's").expect("room");
        floats.fill(&self.stream, 0xff).expect("bytes are set");
        floats
    }

    pub fn read(&self, floats: &Floats) -> Vec<f32> {
        floats.download(&self.stream).expect("a copy")
    }

    /// The batch on the device, in a block that holds it and no more.
    pub fn inputs(&self, batch: &Batch<'_>, page_size: usize) -> Inputs {
        let limits = InputLimits::of(batch, page_size);
        let mut inputs = Inputs::new(&self.context, limits).expect("room");
        inputs.stage(&self.stream, batch).expect("a copy");
        inputs
    }
}

/// A batch of tokens without anything to attend to.
pub fn tokens(tokens: &[u32]) -> Batch<'_> {
    Batch {
        tokens,
        positions: tokens,
        cells: tokens,
        rows: &[],
        pages: &[],
        logit_tokens: &[],
        ..Batch::default()
    }
}

/// Numbers that look random (splitmix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }
    /// A number in -2..2.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0
    }
    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
    /// A number of rows from 1 to 70.
    pub fn rows(&mut self) -> usize {
        1 + self.below(70)
    }
    /// A width near a border of warps or blocks, rarely on one.
    pub fn width(&mut self) -> usize {
        [1, 31, 65, 130, 255, 300][self.below(6)] + self.below(3)
    }
}

/// `values` rounded to the type, as on the device.
pub fn rounded(element: Element, values: &[f32]) -> Vec<f32> {
    match element {
        Element::F32 => values.to_vec(),
        Element::Bf16 => values.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
    }
}

/// Tolerance of a result of this type, for [`assert_close`].
pub fn tolerance(element: Element) -> f64 {
    match element {
        Element::F32 => 1e-5,
        Element::Bf16 => 1.0 / 256.0,
    }
}

/// # Panics
/// Panics if a value is off by more than the tolerance.
#[track_caller]
pub fn assert_close(found: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let error = (f64::from(*found) - wanted).abs();
        assert!(
            error <= tolerance * (1.0 + wanted.abs()),
            "value {at} is {found} instead of {wanted}"
        );
    }
}

/// Bits of values, so that NaN equals NaN.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
