//! Working memory of adapters.

use lockstep_backend::{
    Adapt as _, AdaptedLinear, AdaptedPart, AdaptedShape, DeviceMemory as _, Holds, MatrixShape,
    Memory as _, PassShape, WeightFormat,
};
use lockstep_types::Dtype;

use super::{backend, load, shape};
use crate::{CpuBackend, Isa};

/// Adds adapters to `rows` rows, all of which have one.
fn adapt(backend: &mut CpuBackend, rows: usize, shape: &AdaptedShape, parts: usize) {
    let AdaptedShape {
        places,
        rank,
        down,
        up,
    } = *shape;
    let mut all = |shape| -> Vec<_> { (0..places).map(|_| load(backend, shape)).collect() };
    let part = |number: usize, all: &mut dyn FnMut(MatrixShape) -> Vec<_>| AdaptedPart {
        outputs: number * up.rows..(number + 1) * up.rows,
        up: all(up),
        scales: vec![Some(0.5); places],
    };
    let adapters = AdaptedLinear {
        down: all(down),
        rank,
        parts: (0..parts).map(|number| part(number, &mut all)).collect(),
    };
    let mut tensor = |width| backend.tensor(rows, width, Holds::Sum).unwrap();
    let (x, mut places_of_rows) = (tensor(down.cols), tensor(1));
    let mut out = tensor(parts * up.rows);
    for (row, place) in places_of_rows.values_mut().iter_mut().enumerate() {
        *place = (row % places) as f32;
    }
    backend
        .add_adapters(&x, &adapters, &places_of_rows, &mut out)
        .unwrap();
}

#[test]
fn adapters_need_what_is_charged() {
    for isa in Isa::available() {
        for dtype in [Dtype::Bfloat16, Dtype::Float32] {
            for (rows, places, rank, parts) in [(1, 3, 5, 1), (7, 2, 16, 3), (600, 2, 8, 2)] {
                let (mut backend, memory) = backend(isa, dtype);
                let adapted = AdaptedShape {
                    places,
                    rank,
                    down: shape(parts * rank, 150, WeightFormat::Float),
                    up: shape(33, rank, WeightFormat::Float),
                };
                let pass = PassShape {
                    latent: Vec::new(),
                    tokens: rows,
                    positions: rows,
                    attention: Vec::new(),
                    recurrences: Vec::new(),
                    products: Vec::new(),
                    experts: Vec::new(),
                    adapted: vec![(rows, adapted)],
                    gathered: 0,
                };
                let none = PassShape {
                    adapted: Vec::new(),
                    ..pass.clone()
                };
                adapt(&mut backend, rows, &adapted, parts);
                let charged = memory.scratch_bytes(&[pass]) - memory.scratch_bytes(&[none]);
                let scratch = backend.allocated().scratch;
                assert_eq!(scratch, charged, "{isa} {dtype:?} {rows} rows");
            }
        }
    }
}
