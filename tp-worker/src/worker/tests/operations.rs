//! What a step asks of the device where nothing is drafted.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use lockstep_backend::{
    AttentionShape, Axis, Backend, BackendError, Batch, Holds, HostMatrix, InputLimits, KvShape,
    MatrixRole, RmsNorm, RopeTable, RowParallel, Rows,
};
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::{Collective, Single};
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{Dtype, EngineConfig, step::StepPlan};

use super::{
    speculation::speculating,
    support::{Request, config, cpu, open, row},
};
use crate::worker::{Worker, WorkerOptions};

type Counts = BTreeMap<&'static str, usize>;

/// A device that counts the operations it is asked for.
struct Counting(CpuBackend, Arc<Mutex<Counts>>);

/// Methods that count themselves and go on to the device.
macro_rules! counted {
    ($(fn $name:ident(&mut self, $($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut self, $($arg: $type),*) $(-> $result)? {
            *self.1.lock().unwrap().entry(stringify!($name)).or_default() += 1;
            self.0.$name($($arg),*)
        })*
    };
}

type Matrix = <CpuBackend as Backend>::Matrix;
type Vector = <CpuBackend as Backend>::Vector;
type Tensor = <CpuBackend as Backend>::Tensor;
type Rope = <CpuBackend as Backend>::Rope;
type KvCache = <CpuBackend as Backend>::KvCache;
type Inputs = <CpuBackend as Backend>::Inputs;

impl Backend for Counting {
    type Matrix = Matrix;
    type Vector = Vector;
    type Tensor = Tensor;
    type Rope = Rope;
    type KvCache = KvCache;
    type Inputs = Inputs;
    type Passes = ();

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        self.0.matrix_bytes(matrix)
    }

    // They choose a size and compute nothing.
    fn set_rows(&mut self, tensor: &mut Tensor, rows: usize) {
        self.0.set_rows(tensor, rows);
    }

    fn group(&self, axis: Axis) -> (usize, usize) {
        self.0.group(axis)
    }

    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a Tensor,
        widths: &[usize],
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        *self.1.lock().unwrap().entry("gather_to_host").or_default() += 1;
        self.0.gather_to_host(axis, x, widths, space)
    }

    counted! {
        fn load_matrix(&mut self, matrix: &HostMatrix<'_>, role: MatrixRole) -> Result<Matrix, BackendError>;
        fn load_vector(&mut self, values: &[f32]) -> Result<Vector, BackendError>;
        fn load_rope(&mut self, table: RopeTable) -> Result<Rope, BackendError>;
        fn tensor(&mut self, rows: usize, width: usize, holds: Holds) -> Result<Tensor, BackendError>;
        fn kv_cache(&mut self, shape: &KvShape) -> Result<KvCache, BackendError>;
        fn inputs(&mut self, limits: &InputLimits) -> Result<Inputs, BackendError>;
        fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Inputs) -> Result<(), BackendError>;
        fn embed(&mut self, table: &Matrix, first: u32, inputs: &Inputs, out: &mut Tensor);
        fn matmul(&mut self, x: &Tensor, w: &Matrix, bias: Option<&Vector>, out: &mut Tensor);
        fn rms_norm(&mut self, x: &Tensor, weight: &Vector, eps: f32, out: &mut Tensor);
        fn add_rms_norm(&mut self, residual: &mut Tensor, delta: &Tensor, weight: &Vector, eps: f32, out: &mut Tensor);
        fn matmul_add_rms_norm(&mut self, x: &Tensor, w: RowParallel<'_, Matrix, Vector>, residual: &mut Tensor, delta: &mut Tensor, norm: RmsNorm<'_, Vector>, out: &mut Tensor) -> Result<(), BackendError>;
        fn head_norm(&mut self, qkv: &mut Tensor, shape: &AttentionShape, heads: Range<usize>, weight: &Vector, eps: f32);
        fn rope(&mut self, qkv: &mut Tensor, shape: &AttentionShape, table: &Rope, inputs: &Inputs);
        fn attention(&mut self, cache: &mut KvCache, layer: usize, qkv: &Tensor, shape: &AttentionShape, inputs: &Inputs, out: &mut Tensor);
        fn silu_mul(&mut self, gate_up: &Tensor, out: &mut Tensor);
        fn gather_rows(&mut self, x: &Tensor, rows: Rows<'_, Inputs>, out: &mut Tensor);
        fn copy_rows(&mut self, x: &Tensor, from: &[u32], out: &mut Tensor, to: &[u32]);
        fn place_columns(&mut self, x: &Tensor, out: &mut Tensor, first: usize);
        fn copy_cells(&mut self, cache: &mut KvCache, moves: &[(u32, u32)]);
        fn all_reduce(&mut self, axis: Axis, x: &mut Tensor) -> Result<(), BackendError>;
        fn control(&mut self,) -> &mut dyn Collective;
    }
}

/// Operations of the steps in which two requests decode at the `depths` in turn,
/// after their prompts.
fn operations(config: &EngineConfig, depths: &[u32]) -> Vec<Counts> {
    let counts = Arc::default();
    let backend = Counting(cpu(config, Box::new(Single::new())), Arc::clone(&counts));
    let options = WorkerOptions {
        drafters: &DrafterRegistry::builtin(),
        weight_cache: None,
        progress: &mut |_| {},
    };
    let mut worker = Worker::load(config, 0, backend, options).unwrap();
    let prompt = Request::greedy(&[5, 6, 7, 8, 9], 64);
    let pages = |slot| vec![3 * slot + 1, 3 * slot + 2, 3 * slot + 3];
    let prefill = StepPlan {
        step: 1,
        opens: (0..2).map(|slot| open(slot, &prompt)).collect(),
        extends: (0..2)
            .map(|slot| row(slot, 5, true, &pages(slot)))
            .collect(),
        ..StepPlan::default()
    };
    worker.step(&prefill).unwrap();
    let steps = (2..).zip(depths).map(|(step, depth)| {
        counts.lock().unwrap().clear();
        let plan = StepPlan {
            step,
            extends: (0..2).map(|slot| row(slot, 0, true, &[])).collect(),
            draft_steps: *depth,
            ..StepPlan::default()
        };
        worker.step(&plan).unwrap();
        counts.lock().unwrap().clone()
    });
    steps.collect()
}

/// The operations of `more` that `less` has not.
fn beyond(more: &Counts, less: &Counts) -> Vec<(&'static str, usize)> {
    let mut more = more.clone();
    for (name, count) in less {
        *more.entry(name).or_default() -= count;
    }
    more.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_drafter_that_pauses_runs_nothing() {
    let plain = config(1, 16, Dtype::Float32);
    let alone = &operations(&plain, &[0])[0];
    for (algorithm, kept) in [
        // The hidden states of layers, and the rows that move to the window.
        ("EAGLE3", &[("copy_rows", 1), ("place_columns", 3)][..]),
        ("EAGLE", &[("copy_rows", 1), ("place_columns", 1)]),
        ("STANDALONE", &[]),
    ] {
        let mut drafting = speculating(plain.clone(), algorithm, [3, 1, 4]);
        drafting.speculation.pause_window = 8;
        let found = operations(&drafting, &[0, 0, 3, 0]);
        for at in [0, 1, 3] {
            assert_eq!(beyond(&found[at], alone), kept, "{algorithm}, step {at}");
        }
        let passes = beyond(&found[2], alone);
        assert!(passes.iter().any(|(name, _)| *name == "attention"));
        // Where it may not pause, it runs in these steps too.
        drafting.speculation.pause_window = 0;
        let found = operations(&drafting, &[0, 0]);
        let passes = beyond(&found[1], alone);
        assert!(
            passes.iter().any(|(name, _)| *name == "attention"),
            "{algorithm}: {passes:?}"
        );
    }
}
