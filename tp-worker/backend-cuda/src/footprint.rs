//! Prediction of the GPU memory that a backend takes, before the backend exists.

use lockstep_backend::{
    AttentionShape, DeviceMemory, Holds, InputLimits, KvShape, MatrixRole, MatrixShape, PassShape,
    RankLayout, WeightFormat,
};
use lockstep_types::{CollectiveBackend, Dtype};

use crate::backend::TokenSampler;
use crate::drafting::ChainKernels;
use crate::exchange::{HostExchange, nccl::charge};
use crate::formats::mxfp4;
use crate::ops::attention::writing;
use crate::ops::{WORKSPACE, WorkLimits};
use crate::passes::{Inputs, Lists};
use crate::tensors::{Element, left, share, whole};

/// Memory without a size that is known before: code of kernels, cuBLASLt's too, which is loaded
/// at its first use; lists of matrices' addresses; and the unused ends of units.
const RESERVE: u64 = 64 << 20;

/// Bytes kept free for each recorded pass. This is a bound that graphs should keep within;
/// [`crate::CudaBackend::recorded`] tells what they were seen to take.
const GRAPH: u64 = 3 << 20;

/// Bytes that a [`crate::CudaBackend`] allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaMemory {
    operand: Element,
    way: CollectiveBackend,
}

impl CudaMemory {
    /// Memory of a backend that multiplies in `dtype` and exchanges data by `way`.
    pub fn new(dtype: Dtype, way: CollectiveBackend) -> Self {
        Self {
            operand: Element::of(dtype),
            way,
        }
    }

    /// Bytes of a matrix's values.
    fn weight_bytes(&self, matrix: MatrixShape) -> u64 {
        let element = match matrix.format {
            WeightFormat::Mxfp4 => return mxfp4::bytes(matrix.rows, matrix.cols) as u64,
            WeightFormat::Float32 => Element::F32,
            // Codes with scales are widened. Matrices that an option rounds are refused before anything
            // is charged.
            WeightFormat::Float
            | WeightFormat::Dequantized
            | WeightFormat::Fp8 { .. }
            | WeightFormat::Int8
            | WeightFormat::Int4
            | WeightFormat::Groups(_) => self.operand,
        };
        values(element, &[matrix.rows, matrix.cols])
    }

    /// True if ranks' data may go from device to device.
    fn on_device(&self) -> bool {
        self.way != CollectiveBackend::Host
    }
}

impl DeviceMemory for CudaMemory {
    fn matrix_bytes(&self, matrix: MatrixShape) -> u64 {
        share(self.weight_bytes(matrix))
    }

    fn vector_bytes(&self, len: usize) -> u64 {
        floats(Element::F32, &[len])
    }

    fn draft_ids_bytes(&self, len: usize) -> u64 {
        self.vector_bytes(len)
    }

    fn rope_bytes(&self, positions: usize, half: usize) -> u64 {
        2 * floats(Element::F32, &[positions, half])
    }

    fn tensor_bytes(&self, rows: usize, width: usize, holds: Holds) -> u64 {
        floats(self.operand.holding(holds), &[rows, width])
    }

    fn inputs_bytes(&self, limits: &InputLimits) -> u64 {
        Inputs::bytes(limits)
            .map(whole)
            .fold(0, u64::saturating_add)
    }

    fn kv_bytes(&self, cache: &KvShape) -> u64 {
        let tokens = cache.pages.saturating_mul(cache.page_size);
        (cache.bytes_per_token() as u64).saturating_mul(tokens as u64)
    }

    fn chooses(&self, ranks: usize) -> bool {
        ranks == 1 || self.on_device()
    }

    fn host_bytes(&self, passes: &[PassShape], place: RankLayout) -> u64 {
        let device = self.gathered_bytes(passes, place);
        if self.way == CollectiveBackend::Nccl {
            return device;
        }
        // Heads are tables: a pass multiplies only the rows of a block.
        let products = passes.iter().flat_map(|pass| &pass.products);
        let heads = products.filter(|(_, matrix)| matrix.role == MatrixRole::Vocabulary);
        let own = heads
            .map(|(rows, head)| rows.saturating_mul(head.rows))
            .max();
        let gathered = gathered(passes);
        let staged = HostExchange::host_bytes(place.ranks, own.unwrap_or(0), gathered);
        // Only at the start the ranks find the way that their data goes, so the larger counts.
        staged.max(device)
    }

    fn exchange_bytes(&self, place: RankLayout) -> u64 {
        match self.on_device() {
            true => charge::bytes(place),
            false => 0,
        }
    }

    fn gathered_bytes(&self, passes: &[PassShape], place: RankLayout) -> u64 {
        match self.on_device() {
            true => gathered_bytes(passes, place),
            false => 0,
        }
    }

    fn graph_bytes(&self) -> u64 {
        GRAPH
    }

    fn scratch_bytes(&self, passes: &[PassShape]) -> u64 {
        let tokens = passes.iter().map(|pass| pass.tokens).max().unwrap_or(0);
        // Kernels of several shapes have a room each.
        let room = |pass: &PassShape, shape: &AttentionShape| {
            let limits = WorkLimits::of(shape, pass.tokens, pass.tokens, pass.positions);
            limits.bytes(shape.value_dim())
        };
        let attention = passes.iter().flat_map(|pass| {
            let shapes = written(&pass.attention).into_iter();
            shapes.map(|shape| room(pass, &shape))
        });
        // The last allocation of matrices that share one may be empty but for one of them.
        let unfilled = passes.iter().map(|pass| {
            let mut sizes: Vec<u64> = pass
                .products
                .iter()
                .map(|(_, matrix)| self.weight_bytes(*matrix))
                .collect();
            sizes.sort_unstable();
            sizes.dedup();
            sizes.into_iter().map(left).fold(0, u64::saturating_add)
        });
        let lists = Lists::bytes(2 * tokens);
        let counts = ChainKernels::bytes();
        let fixed = [
            RESERVE,
            WORKSPACE as u64,
            lists,
            TokenSampler::bytes(),
            counts,
        ];
        let arrays = fixed.into_iter().chain(attention).map(whole);
        arrays.chain(unfilled).fold(0, u64::saturating_add)
    }
}

/// Distinct shapes of kernels: layers that read a cache have those of layers that write to it.
fn written(shapes: &[AttentionShape]) -> Vec<AttentionShape> {
    let mut distinct = Vec::with_capacity(shapes.len());
    for shape in shapes.iter().map(writing) {
        if !distinct.contains(&shape) {
            distinct.push(shape);
        }
    }
    distinct
}

/// Logits of all ranks in the largest block of any of these passes.
fn gathered(passes: &[PassShape]) -> usize {
    passes.iter().map(|pass| pass.gathered).max().unwrap_or(0)
}

/// Bytes of the tensor that these logits are gathered in, on the device and on the host alike.
fn gathered_bytes(passes: &[PassShape], place: RankLayout) -> u64 {
    match (place.ranks, gathered(passes)) {
        (1, _) | (_, 0) => 0,
        (_, elements) => floats(Element::F32, &[elements]),
    }
}

/// Bytes of an array of `shape`.
fn floats(element: Element, shape: &[usize]) -> u64 {
    whole(values(element, shape))
}

/// Bytes of the values of an array of `shape`.
fn values(element: Element, shape: &[usize]) -> u64 {
    let sizes = shape.iter().map(|size| *size as u64);
    sizes.fold(element.bytes() as u64, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::host::PIECE;

    #[test]
    fn ranks_with_peers_take_memory_of_the_host() {
        let matrix = |rows, role| MatrixShape {
            rows,
            cols: 8,
            role,
            format: WeightFormat::Float,
        };
        let pass = |head, gathered| PassShape {
            latent: Vec::new(),
            tokens: 4,
            positions: 16,
            attention: vec![AttentionShape::dense(1, 1, 8, 1.0)],
            recurrences: Vec::new(),
            products: vec![
                (9, matrix(PIECE, MatrixRole::Projection)),
                (3, matrix(head, MatrixRole::Vocabulary)),
            ],
            experts: Vec::new(),
            adapted: Vec::new(),
            gathered,
        };
        let bytes = |passes: &[_], ranks| {
            let memory = CudaMemory::new(Dtype::Bfloat16, CollectiveBackend::Host);
            let place = RankLayout {
                ranks,
                ..RankLayout::ALONE
            };
            assert_eq!(memory.exchange_bytes(place), 0);
            assert_eq!(memory.gathered_bytes(passes, place), 0);
            memory.host_bytes(passes, place)
        };
        let (small, large) = (pass(10, 20), pass(PIECE, 0));
        assert_eq!(bytes(&[small.clone(), large.clone()], 1), 0);
        // One piece each way, and all logits where they can't be lent.
        assert_eq!(
            bytes(std::slice::from_ref(&small), 2),
            2 * PIECE as u64 + 4 * 20
        );
        // A block's logits don't fit into a piece.
        assert_eq!(
            bytes(&[small, large], 2),
            (3 * 4 + 1) * PIECE as u64 + 4 * 20
        );
    }
}
