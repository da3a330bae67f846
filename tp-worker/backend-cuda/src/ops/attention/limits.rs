//! Heads that the kernels and a GPU serve.

use lockstep_backend::AttentionShape;

use super::{Attention, stage_bytes};
use crate::error::CudaError;
use crate::runtime::Gpu;
use crate::tensors::Element;

/// Most columns of a value: a warp has sums of a quarter of them in registers.
const WIDEST_VALUE: usize = 512;
/// Most columns of a latent with its shared key: as DeepSeek has them.
const WIDEST_CELL: usize = 576;

impl Attention {
    /// Returns `Ok` if the GPU serves heads of this shape over a cache of this type.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] where the numbers of heads don't divide, or where the kernels
    /// or the GPU's shared memory don't allow the shape.
    pub fn check(gpu: &Gpu, shape: &AttentionShape, cached: Element) -> Result<(), CudaError> {
        check(shape, cached)?;
        let (needed, most) = (stage_bytes(shape, cached), gpu.block_memory());
        if needed <= most {
            return Ok(());
        }
        let smaller = match cached {
            Element::F32 => "give --kv-cache-dtype bfloat16, ",
            Element::Bf16 => "",
        };
        Err(CudaError::Unsupported(format!(
            "heads of {} columns need {needed} bytes of shared memory, and blocks on this GPU ({}) have {most}: {smaller}use another GPU, or run on the CPU",
            shape.head_dim,
            gpu.describe()
        )))
    }
}

fn check(shape: &AttentionShape, cached: Element) -> Result<(), CudaError> {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = *shape;
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || heads == 0 {
        return Err(CudaError::Unsupported(format!(
            "{heads} query heads do not divide among {kv_heads} key heads"
        )));
    }
    let columns = 16 / cached.bytes();
    let whole = head_dim > 0 && head_dim.is_multiple_of(columns);
    let Some(latent) = shape.latent else {
        if whole && head_dim <= WIDEST_VALUE {
            return Ok(());
        }
        return Err(CudaError::Unsupported(format!(
            "heads of {head_dim} columns are not served on GPUs, where a head has up to {WIDEST_VALUE} in multiples of {columns}: run on the CPU"
        )));
    };
    let narrow = latent <= WIDEST_VALUE && head_dim <= WIDEST_CELL;
    if whole && narrow && latent.is_multiple_of(2) && (1..=head_dim).contains(&latent) {
        return Ok(());
    }
    Err(CudaError::Unsupported(format!(
        "latents of {latent} columns in cells of {head_dim} are not served on GPUs, where a latent has up to {WIDEST_VALUE}, an even number of them, and a cell up to {WIDEST_CELL} in multiples of {columns}: run on the CPU"
    )))
}
