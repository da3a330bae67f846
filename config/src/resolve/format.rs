//! What weights and the cache are held in.

use lockstep_types::{ConfigError, Dtype, KvCacheDtype, Quantization};

use crate::args::{DtypeArg, KvCacheDtypeArg, QuantizationArg, ServeArgs};

pub(super) fn dtype(args: &ServeArgs) -> Dtype {
    match args.model.dtype.unwrap_or(DtypeArg::Auto) {
        DtypeArg::Auto | DtypeArg::Bfloat16 => Dtype::Bfloat16,
        DtypeArg::Float32 => Dtype::Float32,
    }
}

pub(super) fn quantization(args: &ServeArgs) -> Quantization {
    match args.model.quantization {
        None | Some(QuantizationArg::None) => Quantization::None,
        Some(QuantizationArg::Int8) => Quantization::Int8,
        Some(QuantizationArg::Int4) => Quantization::Int4,
    }
}

/// The cache's type, which follows `dtype` unless one is given.
pub(super) fn kv_cache(args: &ServeArgs, dtype: Dtype) -> Result<KvCacheDtype, ConfigError> {
    Ok(match args.memory.kv_cache_dtype {
        None | Some(KvCacheDtypeArg::Auto) => match dtype {
            Dtype::Bfloat16 => KvCacheDtype::Bfloat16,
            Dtype::Float32 => KvCacheDtype::Float32,
        },
        Some(KvCacheDtypeArg::Bfloat16) => KvCacheDtype::Bfloat16,
        Some(KvCacheDtypeArg::Float32) => KvCacheDtype::Float32,
        Some(KvCacheDtypeArg::Int8) => KvCacheDtype::Int8,
        Some(KvCacheDtypeArg::Fp8) => {
            return Err(ConfigError::value(
                "--kv-cache-dtype",
                "fp8",
                "this version has no 8-bit floats",
                "Give int8, which takes as much memory",
            ));
        }
    })
}
