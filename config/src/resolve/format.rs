//! Formats of weights and of the cache.

use std::path::PathBuf;

use clap::ValueEnum;
use lockstep_types::{ConfigError, DeviceKind, Dtype, KvCacheDtype, LoadFormat, Quantization};

use crate::args::{DtypeArg, KvCacheDtypeArg, LoadFormatArg, QuantizationArg, ServeArgs};

const LOAD_FORMAT: &str = "--load-format";

/// Source of the weights.
pub(super) fn load(args: &ServeArgs) -> Result<LoadFormat, ConfigError> {
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "gguf");
    match args.model.load_format {
        Some(LoadFormatArg::Safetensors) if args.model.model_path.as_ref().is_some_and(is_gguf) => {
            Err(ConfigError::conflict(
                format!("{LOAD_FORMAT} safetensors"),
                "--model-path",
                "a GGUF file has no safetensors",
                "Leave --load-format out, or give a folder with safetensors",
            ))
        }
        None | Some(LoadFormatArg::Auto | LoadFormatArg::Safetensors) => Ok(LoadFormat::Auto),
        Some(LoadFormatArg::Dummy) => Ok(LoadFormat::Dummy),
        Some(other @ LoadFormatArg::Other(_)) => {
            let why = "weights are read from safetensors, or from a GGUF file that --model-path \
                       names";
            let remedy = "Leave it out, or give dummy for random weights";
            Err(ConfigError::value(LOAD_FORMAT, named(&other), why, remedy))
        }
    }
}

/// The folder of packed weights, or of compiled kernels for a GPU; `None` if there is nothing
/// to keep in it.
pub(super) fn weight_cache(
    args: &ServeArgs,
    format: LoadFormat,
    device: DeviceKind,
) -> Result<Option<PathBuf>, ConfigError> {
    match &args.model.weight_cache {
        Some(cache) if format == LoadFormat::Dummy && device == DeviceKind::Cpu => {
            Err(ConfigError::conflict(
                format!("--weight-cache {}", cache.display()),
                format!("{LOAD_FORMAT} {}", format.name()),
                "random weights are made anew at every start, and none are kept",
                "Leave one of them out",
            ))
        }
        named => Ok(named.clone()),
    }
}

/// Name of the value on the command line.
fn named(value: &impl ValueEnum) -> String {
    let shown = value.to_possible_value();
    shown.map_or_else(String::new, |value| value.get_name().to_owned())
}

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

/// Type of the cache, which follows `dtype` unless an option gives one.
pub(super) fn kv_cache(args: &ServeArgs, dtype: Dtype) -> Result<KvCacheDtype, ConfigError> {
    Ok(match args.memory.kv_cache_dtype {
        None | Some(KvCacheDtypeArg::Auto) => match dtype {
            Dtype::Bfloat16 => KvCacheDtype::Bfloat16,
            Dtype::Float32 => KvCacheDtype::Float32,
        },
        Some(KvCacheDtypeArg::Bfloat16) => KvCacheDtype::Bfloat16,
        Some(KvCacheDtypeArg::Float32) => KvCacheDtype::Float32,
        Some(KvCacheDtypeArg::Int8) => KvCacheDtype::Int8,
        Some(
            floats @ (KvCacheDtypeArg::Fp8 | KvCacheDtypeArg::Fp8E4m3 | KvCacheDtypeArg::Fp8E5m2),
        ) => {
            return Err(ConfigError::value(
                "--kv-cache-dtype",
                named(&floats),
                "this version has no caches in 8-bit floats",
                "Give int8, which takes as much memory",
            ));
        }
    })
}
