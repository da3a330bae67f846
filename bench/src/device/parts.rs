//! Parts that all measurements of a device share: the open device, its ceilings, and the lines
//! of the report.

use std::path::Path;

use lockstep_backend::{
    Attend, AttentionShape, BackendError, Holds, HostMatrix, Linear, MatrixRole, PassKey,
    RandomBlock, RandomMatrix, RandomNumbers, RopeTable, WeightFormat,
};
use lockstep_collective::Single;
use lockstep_devices::{Device, DeviceOptions};
use lockstep_types::EngineConfig;
use serde_json::{Value, json};

use crate::kernels::{Matrix, Times, filled};
use crate::report::Table;

/// Added to mean squares in norms.
pub const EPS: f32 = 1e-5;
/// Bytes that no cache holds: four times the largest one.
pub const EXCEEDING: usize = 256 << 20;
/// Calls in a pass, at least: the pass's start counts as a part of their time.
const LEAST_CALLS: usize = 16;
/// Key of the pass that a measurement of a single kernel records and repeats.
const ONE: PassKey = PassKey {
    requests: 1,
    tokens: 1,
    max_q_len: 1,
};

/// A device, and the settings of its measurements.
pub struct Bench<B> {
    pub backend: B,
    pub repeat: usize,
    /// Total bytes of the arrays that a measurement uses in turn. If it exceeds the device's
    /// caches, each array is read from memory.
    pub working_set: usize,
    /// Format of the model's projections.
    pub format: WeightFormat,
}

impl<B: Device> Bench<B> {
    /// Opens the device. It will record passes of `graphs` tokens. Compiled kernels are kept in
    /// `folder`.
    pub fn open(
        config: &EngineConfig,
        graphs: &[usize],
        folder: Option<&Path>,
        repeat: usize,
        working_set: usize,
    ) -> anyhow::Result<Self> {
        let options = DeviceOptions {
            graphs,
            ..DeviceOptions::new(config)
        };
        let mut backend = B::open(&options.of_rank(0, folder), Box::new(Single::new()))?;
        backend.prepare_meter(working_set)?;
        Ok(Self {
            backend,
            repeat,
            working_set,
            format: WeightFormat::of(config.model.quantization, MatrixRole::Projection),
        })
    }

    /// Runs a call once, as a pass of its own.
    pub fn once(&mut self, mut call: impl FnMut(&mut B, usize)) -> anyhow::Result<()> {
        let mut passes = B::Passes::default();
        let mut work = |backend: &mut B| -> Result<(), BackendError> {
            call(backend, 0);
            Ok(())
        };
        let mut pass = |backend: &mut B| backend.pass(&mut passes, ONE, &mut work);
        self.backend.measure(0, &mut pass)?;
        Ok(())
    }

    /// Measures the time of one call. The device records `calls` different calls as one pass and
    /// repeats the pass, so the host has no part in the times. Few calls are recorded several
    /// times in a pass, but a single one once. Example: with 20 calls, a pass of 100 µs counts as
    /// 5 µs per call.
    pub fn times(
        &mut self,
        calls: usize,
        mut call: impl FnMut(&mut B, usize),
    ) -> anyhow::Result<Times> {
        let recorded = match calls {
            1 => 1,
            _ => calls * LEAST_CALLS.div_ceil(calls),
        };
        let mut passes = B::Passes::default();
        let mut work = |backend: &mut B| -> Result<(), BackendError> {
            (0..recorded).for_each(|number| call(backend, number % calls));
            Ok(())
        };
        let mut pass = |backend: &mut B| backend.pass(&mut passes, ONE, &mut work);
        // One call records the pass, and one warms up.
        for _ in 0..2 {
            self.backend.measure(0, &mut pass)?;
        }
        let mut seconds = Vec::with_capacity(self.repeat);
        for _ in 0..self.repeat {
            seconds.push(self.backend.measure(1, &mut pass)? / recorded as f64);
        }
        Ok(Times::of(seconds))
    }

    /// Measures the time of one call behind the reading of `bytes` of memory, whose time is taken
    /// off, and with it that of the pass's start. More bytes than a cache holds empty it before
    /// each call.
    pub fn times_behind(
        &mut self,
        bytes: usize,
        calls: usize,
        mut call: impl FnMut(&mut B, usize),
    ) -> anyhow::Result<Times> {
        let reading = self.times(calls, |backend, _| backend.read_memory(bytes))?;
        let both = self.times(calls, |backend, number| {
            backend.read_memory(bytes);
            call(backend, number);
        })?;
        let less = |seconds: f64| (seconds - reading.median).max(0.0);
        Ok(Times {
            median: less(both.median),
            min: less(both.min),
            max: less(both.max),
        })
    }

    /// Returns the number of arrays of `bytes` bytes to use in turn: as many as
    /// fill the working set, but at least 2 and at most 64. Example: 16 arrays of 64 MiB
    /// fill 1 GiB.
    pub fn turns(&self, bytes: usize) -> usize {
        const MOST: usize = 64;
        self.working_set.div_ceil(bytes.max(1)).clamp(2, MOST)
    }

    /// Returns the number of layers of a cache of which a call reads `bytes` bytes each: as many
    /// as [`Self::turns`], or, if no device's cache is to hold them, more, up to 1,024.
    pub fn layers(&self, bytes: usize) -> usize {
        const MOST: usize = 1024;
        let wanted = EXCEEDING.div_ceil(bytes.max(1));
        let turns = self.turns(bytes);
        match self.working_set >= EXCEEDING {
            true => turns.max(wanted.min(MOST)),
            false => turns,
        }
    }

    /// Loads a matrix of random numbers. Each `key` gives other numbers.
    pub fn matrix(&mut self, of: Matrix, key: u64) -> anyhow::Result<B::Matrix> {
        let block = RandomBlock {
            numbers: RandomNumbers::new(key, 1.0 / (of.cols as f32).sqrt()),
            first: 0,
            stride: of.cols,
            rows: of.rows,
        };
        let matrix = HostMatrix::Random(RandomMatrix {
            cols: of.cols,
            blocks: vec![block],
        });
        Ok(self.backend.load_matrix(&matrix, self.format)?)
    }
}

/// Angles of the first `positions` positions.
pub fn rope<B: Device>(
    backend: &mut B,
    head_dim: usize,
    positions: usize,
) -> anyhow::Result<B::Rope> {
    let half = head_dim / 2;
    Ok(backend.load_rope(RopeTable {
        queries: Vec::new(),
        half,
        cos: vec![0.8; positions * half],
        sin: vec![0.6; positions * half],
    })?)
}

/// Attention whose queries and keys are rotated but not normed.
pub fn unnormed<'a, M, V, R>(shape: &'a AttentionShape, rope: &'a R) -> Attend<'a, M, V, R> {
    Attend {
        shape,
        q_norm: None,
        k_norm: None,
        v_norm: None,
        eps: EPS,
        rope,
        sinks: None,
        next: None,
    }
}

/// Ceilings of a kernel's speed: the highest rates that the device reached in this run, per
/// second.
pub struct Ceilings {
    /// Bytes read and bytes written, in a copy.
    pub copy: Times,
    /// Bytes read.
    pub read: Times,
    /// Multiplications and additions.
    pub product: Times,
    size: usize,
}

impl Ceilings {
    /// Returns the least seconds that this many bytes and operations take.
    pub fn floor(&self, bytes: f64, operations: f64) -> f64 {
        (bytes / self.copy.median).max(operations / self.product.median)
    }

    /// Measures the two ceilings of memory, and the ceiling of arithmetic by a square product of
    /// `size` rows and columns.
    pub fn measure<B: Device>(bench: &mut Bench<B>, size: usize) -> anyhow::Result<Self> {
        bench.backend.measure_memory()?;
        let (mut copy, mut read) = (Vec::new(), Vec::new());
        for _ in 0..bench.repeat {
            let times = bench.backend.measure_memory()?;
            copy.push(2.0 * times.bytes as f64 / times.copied);
            read.push(times.bytes as f64 / times.read);
        }
        let of = Matrix {
            name: "peak",
            rows: size,
            cols: size,
        };
        let matrix = bench.matrix(of, 1)?;
        let x = filled(&mut bench.backend, size, size, Holds::Operand)?;
        let mut out = bench.backend.tensor(size, size, Holds::Sum)?;
        let times = bench.times(2, |backend, _| {
            backend.matmul(&x, Linear::unbiased(&matrix), &mut out);
        })?;
        let operations = 2.0 * (size as f64).powi(3);
        // The shortest time is the highest rate.
        let product = Times {
            median: operations / times.median,
            min: operations / times.max,
            max: operations / times.min,
        };
        Ok(Self {
            copy: Times::of(copy),
            read: Times::of(read),
            product,
            size,
        })
    }

    /// Returns the ceilings as a table.
    pub fn table(&self) -> Table {
        let columns = ["ceiling", "median", "min", "max", "unit"];
        let mut table = Table::new("Ceilings of this run", &columns);
        let product = format!("product of {0} x {0} x {0}", self.size);
        for (name, times, scale, unit) in [
            ("copy, read and written", self.copy, 1e-9, "GB/s"),
            ("read", self.read, 1e-9, "GB/s"),
            (&*product, self.product, 1e-12, "TFLOP/s"),
        ] {
            table.row(vec![
                json!(name),
                json!(times.median * scale),
                json!(times.min * scale),
                json!(times.max * scale),
                json!(unit),
            ]);
        }
        table
    }
}

/// A measured kernel: one line of the report.
pub struct Line {
    pub kernel: String,
    pub size: String,
    pub times: Times,
    /// Bytes that a call reads from memory and writes to it, at least.
    pub bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
}

/// Kernels by their names, with the one that reads memory to empty the caches.
pub type Names = &'static [&'static str];

/// A kernel to be measured by itself.
pub struct Alone<'a> {
    pub names: Names,
    pub label: &'a str,
    pub size: String,
    /// Number of different arrays; call `number` uses the array of that number.
    pub arrays: usize,
    /// True if a pass runs the kernel once, however many calls it has.
    pub once: bool,
    /// Bytes that a call reads and writes, at least.
    pub bytes: f64,
    pub operations: f64,
}

/// Column names of [`Line::cells`].
pub const COLUMNS: [&str; 11] = [
    "kernel",
    "size",
    "us",
    "min us",
    "max us",
    "floor us",
    "of floor",
    "GB/s",
    "TFLOP/s",
    "of copy",
    "of product",
];

impl Line {
    /// Returns the kernel's figures, and its parts of the ceilings.
    pub fn cells(&self, ceilings: &Ceilings) -> Vec<Value> {
        let seconds = self.times.median;
        // A time that is taken as a difference may be zero.
        let rate = |amount: f64| match seconds > 0.0 {
            true => amount / seconds,
            false => 0.0,
        };
        let floor = ceilings.floor(self.bytes, self.operations);
        vec![
            json!(self.kernel),
            json!(self.size),
            json!(seconds * 1e6),
            json!(self.times.min * 1e6),
            json!(self.times.max * 1e6),
            json!(floor * 1e6),
            json!(rate(floor)),
            json!(rate(self.bytes) * 1e-9),
            json!(rate(self.operations) * 1e-12),
            json!(rate(self.bytes) / ceilings.copy.median),
            json!(rate(self.operations) / ceilings.product.median),
        ]
    }
}
