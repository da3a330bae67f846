//! Kernels that are a part of an operation, each by itself: the others of the operation are
//! left out while it is measured.

use lockstep_backend::{Attend, Axis, Holds, Linear, RmsNorm, RopeTable, RowParallel};
use lockstep_devices::Device;

use super::kernels::Kernels;
use super::parts::{Alone, Line, Names};
use crate::kernels::{Call, filled, staged};

const NORM: Names = &["rms_norm", READS];
const SUM: Names = &["sum_up", READS];
const GATE: Names = &["silu_mul", READS];
const HEADS: Names = &["rotate_and_store", READS];
const READS: &str = "read_all";
/// Most rows of products by kernels of our own, which leave sums in parts.
const FEW: usize = 64;
const EPS: f32 = 1e-5;
/// Bytes that the cache of every GPU of a server holds, with room for what else runs.
const HELD: usize = 16 << 20;
/// Bytes that no cache holds: four times the largest one.
const EXCEEDING: usize = 256 << 20;
/// Calls of a pass whose data the cache holds.
const REPEATS: usize = 16;

/// The state of the device's cache while a kernel is measured.
enum Cache {
    /// It holds the kernel's data.
    Holds,
    /// It was emptied before each call.
    Emptied,
    /// The data used in turn are larger.
    Exceeded,
}

/// Returns how many arrays of `bytes` bytes the cache holds, of `calls`, and how often to call
/// with them in turn. No arrays if it does not hold one.
fn held(bytes: usize, calls: usize) -> (usize, usize) {
    let arrays = HELD.checked_div(bytes).unwrap_or(calls).min(calls);
    (arrays, if calls == 1 { 1 } else { REPEATS })
}

impl<B: Device> Kernels<'_, B> {
    /// Measures the kernels that treat each row by itself, for each number of rows.
    pub fn elementwise(&mut self, rows: &[usize]) -> anyhow::Result<()> {
        for &rows in rows {
            self.norm(rows)?;
            self.gate(rows)?;
            self.heads(rows)?;
            if rows <= FEW {
                self.sums(rows)?;
                self.norm_of_parts(rows)?;
            }
        }
        Ok(())
    }

    /// Measures one kernel of the operation that `call` asks for. Where the operation has no such
    /// kernel, there is no line. Arrays that a cache holds are measured in it and out of it.
    pub fn alone(
        &mut self,
        of: &Alone<'_>,
        mut call: impl FnMut(&mut B, usize),
    ) -> anyhow::Result<()> {
        // All kernels run once, so that the measured one finds what the others leave.
        self.bench.once(&mut call)?;
        self.bench.backend.select_kernels(of.names);
        let found = self.bench.once(&mut call);
        let launches = self.bench.backend.select_kernels(&[]);
        found?;
        if launches == 0 {
            return Ok(());
        }
        // A kernel that runs once in a pass is called once in it.
        let (arrays, repeats) = held(of.bytes as usize, of.calls);
        let mut measured = |how: Cache, label: String| {
            self.bench.backend.select_kernels(of.names);
            let times = match how {
                Cache::Holds => self.bench.times(repeats, |backend, number| {
                    call(backend, number % arrays);
                }),
                Cache::Emptied => self.bench.cold_times(of.calls, &mut call),
                Cache::Exceeded => self.bench.times(of.calls, &mut call),
            };
            self.bench.backend.select_kernels(&[]);
            let line = Line {
                kernel: label,
                size: of.size.clone(),
                times: times?,
                bytes: of.bytes,
                operations: of.operations,
            };
            self.keep(&line)
        };
        if arrays > 0 {
            measured(Cache::Holds, format!("{}, cached", of.label))?;
        }
        let exceeds = of.bytes * of.calls as f64 >= EXCEEDING as f64;
        let how = if exceeds {
            Cache::Exceeded
        } else {
            Cache::Emptied
        };
        measured(how, of.label.to_owned())
    }

    fn norm(&mut self, rows: usize) -> anyhow::Result<()> {
        let (hidden, element) = (self.shape.hidden, self.config.dtype.bytes());
        let bytes = rows * hidden * (12 + element) + 4 * hidden;
        let calls = self.bench.turns(bytes);
        let backend = &mut self.bench.backend;
        let mut arrays = Vec::with_capacity(calls);
        for _ in 0..calls {
            arrays.push((
                filled(backend, rows, hidden, Holds::Sum)?,
                filled(backend, rows, hidden, Holds::Sum)?,
                backend.load_vector(&vec![1.0; hidden])?,
                backend.tensor(rows, hidden, Holds::Operand)?,
            ));
        }
        let of = Alone {
            names: NORM,
            label: "rms_norm",
            size: format!("{rows} x {hidden}"),
            calls,
            bytes: bytes as f64,
            operations: 0.0,
        };
        self.alone(&of, |backend, number| {
            let (residual, delta, weight, out) = &mut arrays[number];
            backend.add_rms_norm(residual, delta, weight, EPS, out);
        })
    }

    fn gate(&mut self, rows: usize) -> anyhow::Result<()> {
        let (width, element) = (self.shape.intermediate, self.config.dtype.bytes());
        let bytes = rows * width * (8 + element);
        let calls = self.bench.turns(bytes);
        let backend = &mut self.bench.backend;
        let mut arrays = Vec::with_capacity(calls);
        for _ in 0..calls {
            arrays.push((
                filled(backend, rows, 2 * width, Holds::Sum)?,
                backend.tensor(rows, width, Holds::Operand)?,
            ));
        }
        let of = Alone {
            names: GATE,
            label: "silu_mul",
            size: format!("{rows} x {width}"),
            calls,
            bytes: bytes as f64,
            operations: 0.0,
        };
        self.alone(&of, |backend, number| {
            let (gate_up, out) = &mut arrays[number];
            backend.silu_mul(gate_up, out);
        })
    }

    /// Rotates queries and keys, and stores keys and values: of a prompt if there are many rows.
    fn heads(&mut self, rows: usize) -> anyhow::Result<()> {
        let (page_size, attention) = (self.config.kv.page_size, self.shape.attention());
        let call = match rows <= FEW {
            true => Call::new(rows, 1, 0, page_size),
            false => Call::new(1, rows, 0, page_size),
        };
        let kv = self.cache_shape(rows * page_size);
        let token = kv.bytes_per_token();
        let queries = attention.heads * attention.head_dim;
        let bytes = rows * (4 * attention.qkv_width() + 4 * queries + token);
        let backend = &mut self.bench.backend;
        let mut cache = backend.kv_cache(&kv)?;
        let half = attention.head_dim / 2;
        let rope = backend.load_rope(RopeTable {
            half,
            cos: vec![0.8; rows * half],
            sin: vec![0.6; rows * half],
        })?;
        let mut qkv = filled(backend, rows, attention.qkv_width(), Holds::Sum)?;
        let mut out = backend.tensor(rows, attention.out_width(), Holds::Operand)?;
        let inputs = staged(backend, &call.batch(), page_size)?;
        let of = Alone {
            names: HEADS,
            label: "rotate_and_store",
            size: format!("{rows} x {}", attention.qkv_width()),
            calls: 2,
            bytes: bytes as f64,
            operations: 0.0,
        };
        self.alone(&of, |backend, _| {
            let op = Attend {
                shape: &attention,
                q_norm: None,
                k_norm: None,
                eps: EPS,
                rope: &rope,
            };
            backend.attend(&mut cache, 0, &mut qkv, &op, &inputs, &mut out);
        })
    }

    /// Adds up the parts of the product of queries, keys and values.
    fn sums(&mut self, rows: usize) -> anyhow::Result<()> {
        let [qkv, ..] = self.shape.layer();
        let matrix = self.bench.matrix(qkv, 1)?;
        let backend = &mut self.bench.backend;
        let x = filled(backend, rows, qkv.cols, Holds::Operand)?;
        let mut out = backend.tensor(rows, qkv.rows, Holds::Sum)?;
        let of = Alone {
            names: SUM,
            label: "sum_up of qkv",
            size: format!("{rows} x {}", qkv.rows),
            calls: 16,
            // A part is read, at least two of which there are, and the sum is written.
            bytes: (3 * 4 * rows * qkv.rows) as f64,
            operations: 0.0,
        };
        self.alone(&of, |backend, _| {
            backend.matmul(&x, Linear::unbiased(&matrix), &mut out);
        })
    }

    /// The norm that adds up the parts of the product before it.
    fn norm_of_parts(&mut self, rows: usize) -> anyhow::Result<()> {
        let [_, o, ..] = self.shape.layer();
        let matrix = self.bench.matrix(o, 1)?;
        let element = self.config.dtype.bytes();
        let backend = &mut self.bench.backend;
        let x = filled(backend, rows, o.cols, Holds::Operand)?;
        let mut residual = filled(backend, rows, o.rows, Holds::Sum)?;
        let mut delta = backend.tensor(rows, o.rows, Holds::Sum)?;
        let mut out = backend.tensor(rows, o.rows, Holds::Operand)?;
        let weight = backend.load_vector(&vec![1.0; o.rows])?;
        let of = Alone {
            names: NORM,
            label: "rms_norm of the parts of o",
            size: format!("{rows} x {}", o.rows),
            calls: 16,
            bytes: (rows * o.rows * (12 + element) + 4 * o.rows) as f64,
            operations: 0.0,
        };
        let mut failed = None;
        let done = self.alone(&of, |backend, _| {
            let w = RowParallel {
                part: Linear::unbiased(&matrix),
                axis: Axis::World,
            };
            let norm = RmsNorm {
                weight: &weight,
                eps: EPS,
            };
            let done =
                backend.matmul_add_rms_norm(&x, w, &mut residual, &mut delta, norm, &mut out);
            failed = done.err().or(failed.take());
        });
        failed.map_or(done, |error| Err(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_cached_fits_a_cache() {
        assert_eq!(held(HELD / 3, 64), (3, REPEATS));
        assert_eq!(held(HELD + 1, 64).0, 0, "no cache holds that");
        assert_eq!(held(1, 2), (2, REPEATS));
        assert_eq!(held(0, 1), (1, 1), "once in a pass");
        for (bytes, calls) in [(1 << 10, 64), (1 << 20, 64), (6 << 20, 8)] {
            let (arrays, _) = held(bytes, calls);
            assert!(arrays > 0 && arrays * bytes <= HELD);
        }
    }
}
