//! Kernels that are a part of an operation, each by itself: the others of the operation are
//! left out while it is measured.

use lockstep_backend::{Axis, Holds, Linear, RmsNorm, RowParallel};
use lockstep_devices::Device;
use lockstep_types::Activation;

use super::kernels::Kernels;
use super::parts::{Alone, EPS, EXCEEDING, Line, Names, rope, unnormed};
use crate::kernels::{Call, filled, staged};

const NORM: Names = &["rms_norm", "rms_norm_wide", READS];
const GATE: Names = &["silu_mul", READS];
const HEADS: Names = &["rotate_and_store", READS];
const READS: &str = "read_all";
/// Most rows of products by kernels of our own, which leave sums in parts.
const FEW: usize = 64;
/// Bytes that the cache of every GPU of a server holds, with room for what else runs.
const HELD: usize = 16 << 20;
/// Calls of a pass whose data the cache holds.
const REPEATS: usize = 16;
/// Calls of a pass before each of which the cache is emptied; that takes most of the time.
const EMPTIED: usize = 8;
/// Bytes that are read to empty the cache: twice the caches of today's GPUs.
const EVICTING: usize = 256 << 20;
/// Bytes that are read where only the pass's start is to be taken off.
const READ: usize = 64 << 10;

/// The state of the device's cache while a kernel is measured.
enum Cache {
    /// It holds the kernel's data.
    Holds,
    /// It was emptied before each call.
    Emptied,
    /// The data used in turn are larger.
    Exceeded,
}

/// Returns how many arrays of `bytes` bytes the cache holds, of `arrays`.
fn held(bytes: usize, arrays: usize) -> usize {
    HELD.checked_div(bytes).unwrap_or(arrays).min(arrays)
}

impl<B: Device> Kernels<'_, B> {
    /// Measures the kernels that treat each row by itself, for each number of rows.
    pub fn elementwise(&mut self, rows: &[usize]) -> anyhow::Result<()> {
        for &rows in rows {
            self.norm(rows)?;
            self.gate(rows)?;
            self.heads(rows)?;
            if rows <= FEW {
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
        let arrays = held(of.bytes as usize, of.arrays);
        let mut measured = |how: Cache, label: String| {
            self.bench.backend.select_kernels(of.names);
            let times = match how {
                // A kernel that runs once in a pass is called once in it, behind another one, so
                // that the pass's start does not count as its time.
                Cache::Holds if of.once => self.bench.times_behind(READ, 1, &mut call),
                Cache::Holds => self.bench.times(REPEATS, |backend, number| {
                    call(backend, number % arrays);
                }),
                Cache::Emptied => {
                    let calls = if of.once { 1 } else { EMPTIED };
                    self.bench.times_behind(EVICTING, calls, |backend, number| {
                        call(backend, number % of.arrays);
                    })
                }
                Cache::Exceeded => self.bench.times(of.arrays, &mut call),
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
        let exceeds = of.bytes * of.arrays as f64 >= EXCEEDING as f64;
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
            arrays: calls,
            once: false,
            bytes: bytes as f64,
            operations: 0.0,
        };
        self.alone(&of, |backend, number| {
            let (residual, delta, weight, out) = &mut arrays[number];
            let norm = RmsNorm { weight, eps: EPS };
            backend.end_block(residual, Some(delta), norm.into(), out);
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
            arrays: calls,
            once: false,
            bytes: bytes as f64,
            operations: 0.0,
        };
        self.alone(&of, |backend, number| {
            let (gate_up, out) = &mut arrays[number];
            backend.gate(gate_up, Activation::Silu, out);
        })
    }

    /// Rotates queries and keys, and stores keys and values, as a step does: with few rows from
    /// the parts that the product before leaves, with many as a prompt.
    fn heads(&mut self, rows: usize) -> anyhow::Result<()> {
        let (page_size, attention) = (self.config.kv.page_size, self.shape.attention());
        let call = match rows <= FEW {
            true => Call::new(rows, 1, 0, page_size),
            false => Call::new(1, rows, 0, page_size),
        };
        let kv = self.cache_shape(rows * page_size);
        let token = kv.bytes_per_token() / kv.layers;
        // Queries have the cache's type then.
        let queries = attention.heads * self.config.kv.dtype.row_bytes(attention.head_dim);
        let bytes = rows * (4 * attention.qkv_width() + queries + token);
        let [product, ..] = self.shape.layer();
        let matrix = self.bench.matrix(product, 1)?;
        let backend = &mut self.bench.backend;
        let mut cache = backend.kv_cache(&kv)?;
        let rope = rope(backend, attention.head_dim, rows)?;
        let x = filled(backend, rows, product.cols, Holds::Operand)?;
        let mut qkv = filled(backend, rows, attention.qkv_width(), Holds::Sum)?;
        let mut out = backend.tensor(rows, attention.out_width(), Holds::Operand)?;
        let inputs = staged(backend, &call.batch(), page_size)?;
        let of = Alone {
            names: HEADS,
            label: "rotate_and_store",
            size: format!("{rows} x {}", attention.qkv_width()),
            arrays: 1,
            once: false,
            bytes: bytes as f64,
            operations: 0.0,
        };
        self.alone(&of, |backend, _| {
            let op = unnormed(&attention, &rope);
            let (cache, qkv, out) = (&mut cache, &mut qkv, &mut out);
            if rows <= FEW {
                let w = Linear::unbiased(&matrix);
                backend.matmul_attend(&x, w, cache, 0, qkv, &op, &inputs, out);
            } else {
                // A library's product, which is no kernel of ours, leaves whole sums.
                backend.attend(cache, 0, qkv, &op, &inputs, out);
            }
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
            arrays: 1,
            once: false,
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
                backend.matmul_end_block(&x, w, &mut residual, &mut delta, norm.into(), &mut out);
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
        assert_eq!(held(HELD / 3, 64), 3);
        assert_eq!(held(HELD + 1, 64), 0, "no cache holds that");
        assert_eq!((held(1, 2), held(0, 1)), (2, 1));
        for (bytes, calls) in [(1 << 10, 64), (1 << 20, 64), (6 << 20, 8)] {
            let arrays = held(bytes, calls);
            assert!(arrays > 0 && arrays * bytes <= HELD);
        }
    }
}
