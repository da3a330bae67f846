//! Computes the memory that a backend takes, before there is one.

use lockstep_backend::{
    AdaptedShape, DeviceMemory, ExpertsShape, Holds, InputLimits, KvShape, LatentHeads,
    MatrixShape, PassShape,
};
use lockstep_types::Dtype;

use crate::formats;
use crate::gemm::scratch_words;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::memory::grown;
use crate::options::CpuOptions;
use crate::{adapters, attention, experts, latent, recurrent};

/// Bytes that a [`crate::CpuBackend`] of these settings allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuMemory {
    dtype: Dtype,
    threads: usize,
    isa: Isa,
}

/// Bytes that a backend has allocated, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuAllocated {
    /// Packed weights.
    pub matrices: u64,
    /// Norms, biases and rotary angles.
    pub vectors: u64,
    /// Tensors, and room for batches.
    pub activations: u64,
    /// Caches, when they are full.
    pub kv: u64,
    /// States and records of recurrent layers, when they are full.
    pub states: u64,
    /// Working memory of operations, at the size that they have needed so far.
    pub scratch: u64,
}

impl CpuMemory {
    /// Settings of a backend with `options`.
    pub fn new(options: &CpuOptions) -> Self {
        Self {
            dtype: options.dtype,
            threads: options.threads,
            isa: options.isa.unwrap_or_else(Isa::detect),
        }
    }
}

impl DeviceMemory for CpuMemory {
    fn matrix_bytes(&self, matrix: MatrixShape) -> u64 {
        let format = formats::of(self.dtype, matrix.format);
        words(formats::words(format, matrix.rows, matrix.cols))
    }

    fn vector_bytes(&self, len: usize) -> u64 {
        words(len)
    }

    fn rope_bytes(&self, positions: usize, half: usize) -> u64 {
        words(positions.saturating_mul(2 * half))
    }

    fn tensor_bytes(&self, rows: usize, width: usize, _: Holds) -> u64 {
        words(rows.saturating_mul(width))
    }

    fn inputs_bytes(&self, limits: &InputLimits) -> u64 {
        CpuInputs::bytes(limits)
    }

    fn kv_bytes(&self, cache: &KvShape) -> u64 {
        let tokens = cache.pages.saturating_mul(cache.page_size);
        (cache.bytes_per_token() as u64).saturating_mul(tokens as u64)
    }

    fn scratch_bytes(&self, passes: &[PassShape]) -> u64 {
        let most = |size: &dyn Fn(&PassShape) -> usize| passes.iter().map(size).max().unwrap_or(0);
        let products = most(&|pass| self.packed(pass));
        let lists = most(&|pass| lists(pass));
        let adapted = most(&|pass| {
            let values = |(rows, own): &(usize, AdaptedShape)| {
                let parts = own.down.rows / own.rank.max(1);
                grown(adapters::values(*rows, own.rank, parts, own.up.rows))
            };
            pass.adapted.iter().map(values).max().unwrap_or(0)
        });
        let partials = most(&|pass| attention::most_partials(self.threads, pass));
        let gathered = most(&|pass| pass.gathered);
        let recurrent = |part: usize| {
            most(&|pass| {
                let words = |rule| grown(recurrent::scratch_words(self.threads, rule)[part]);
                pass.recurrences.iter().map(words).max().unwrap_or(0)
            })
        };
        let [columns, tiles] = [recurrent(0), recurrent(1)];
        let shapes = passes.iter().flat_map(|pass| &pass.attention);
        let attention = attention::scratch_bytes(shapes);
        [products, lists, adapted, partials, gathered, columns, tiles]
            .into_iter()
            .map(words)
            .fold((self.threads * attention) as u64, u64::saturating_add)
    }
}

impl CpuMemory {
    /// Words of packed inputs of any product of a pass.
    fn packed(&self, pass: &PassShape) -> usize {
        let of = |shape: MatrixShape| formats::of(self.dtype, shape.format);
        let plain = |(rows, matrix): &(usize, MatrixShape)| {
            let shape = [matrix.rows, matrix.cols];
            grown(scratch_words(
                self.threads,
                of(*matrix),
                self.isa,
                *rows,
                shape,
            ))
        };
        let experts = |(rows, experts): &(usize, ExpertsShape)| {
            let matrices = [experts.gate_up, experts.down].map(|shape| (of(shape), shape));
            let choices = rows.saturating_mul(experts.active);
            grown(experts::packed_words(self.isa, choices, matrices))
        };
        let latents = |heads: &LatentHeads| {
            let formats = [heads.keys, heads.values].map(of);
            grown(latent::packed_words(self.isa, pass.tokens, heads, formats))
        };
        let adapters = |(rows, own): &(usize, AdaptedShape)| {
            let sizes = [own.down.cols, own.rank];
            grown(adapters::packed_words(self.isa, *rows, of(own.down), sizes))
        };
        let plain = pass.products.iter().map(plain);
        let experts = pass.experts.iter().map(experts);
        let latents = pass.latent.iter().map(latents);
        let adapters = pass.adapted.iter().map(adapters);
        let all = plain.chain(experts).chain(latents).chain(adapters);
        all.max().unwrap_or(0)
    }
}

/// Words of lists of any operation of a pass: routes of experts, heads, and rows of adapters.
fn lists(pass: &PassShape) -> usize {
    let experts = pass.experts.iter().map(|(rows, experts)| {
        let ExpertsShape { count, active, .. } = *experts;
        grown(experts::routing_words(*rows, count, active))
    });
    let latents = pass.latent.iter();
    let latents = latents.map(|heads| grown(latent::list_words(heads.shape.heads)));
    let adapters = pass.adapted.iter();
    let adapters = adapters.map(|(rows, own)| grown(adapters::list_words(*rows, own.places)));
    experts.chain(latents).chain(adapters).max().unwrap_or(0)
}

/// Bytes of `words` words of four bytes.
fn words(words: usize) -> u64 {
    (words as u64).saturating_mul(4)
}

#[cfg(test)]
mod tests;
