//! Checkpoint values as f32.

use lockstep_backend::CheckpointDtype;

use crate::number::bf16_value;

/// Decodes little-endian values of any type to f32, which holds all of them exactly.
pub(super) fn decode(dtype: CheckpointDtype, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        CheckpointDtype::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        CheckpointDtype::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16_value(u16::from_le_bytes(*bytes));
            }
        }
        CheckpointDtype::F16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}
