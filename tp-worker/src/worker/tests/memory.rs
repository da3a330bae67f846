//! What drafting takes, as configuration counts it and as it is allocated.

use lockstep_types::{Dtype, EngineConfig, KvCacheDtype, Quantization};

use super::{
    speculation::speculating,
    support::{config, load_alone},
};
use crate::worker::local::{LocalGroup, LocalOptions};

const ALGORITHMS: [&str; 3] = ["EAGLE", "EAGLE3", "STANDALONE"];

/// The same without drafts.
fn plain(config: &EngineConfig) -> EngineConfig {
    EngineConfig {
        speculation: lockstep_types::SpeculationConfig::none(),
        ..config.clone()
    }
}

/// Norms and biases are counted and no matrices, and packed rows are padded:
/// both small.
fn close(counted: u64, taken: usize) -> bool {
    counted.abs_diff(taken as u64) * 100 <= counted
}

#[test]
fn weights_take_what_is_counted() {
    for (algorithm, dtype, quantization, tp_size) in [
        ("EAGLE", Dtype::Bfloat16, Quantization::None, 1),
        ("EAGLE3", Dtype::Bfloat16, Quantization::Int8, 1),
        ("STANDALONE", Dtype::Float32, Quantization::Int4, 1),
        ("EAGLE", Dtype::Float32, Quantization::None, 2),
        ("EAGLE3", Dtype::Bfloat16, Quantization::None, 2),
        ("STANDALONE", Dtype::Bfloat16, Quantization::None, 2),
    ] {
        let mut config = speculating(config(tp_size, 16, dtype), algorithm, [3, 1, 4]);
        config.quantization = quantization;
        let bytes = |config: &EngineConfig| {
            LocalGroup::start(config, &LocalOptions::default())
                .unwrap()
                .weight_bytes()
        };
        let taken = bytes(&config) - bytes(&plain(&config));
        let counted = lockstep_config::draft_memory(&config).unwrap().weights;
        assert!(
            close(counted, taken),
            "{algorithm} {dtype:?} {quantization:?} on {tp_size}: {counted} counted, {taken} taken"
        );
    }
}

#[test]
fn keys_and_values_take_what_is_counted() {
    for (algorithm, dtype) in ALGORITHMS.into_iter().zip([
        KvCacheDtype::Bfloat16,
        KvCacheDtype::Float32,
        KvCacheDtype::Int8,
    ]) {
        let mut config = speculating(config(1, 16, Dtype::Float32), algorithm, [3, 1, 4]);
        config.kv.dtype = dtype;
        let bytes = |config: &EngineConfig| {
            let worker = load_alone(config).unwrap();
            worker.kv_bytes()
        };
        let taken = bytes(&config) - bytes(&plain(&config));
        let counted = lockstep_config::draft_memory(&config).unwrap().kv;
        assert_eq!(taken as u64, counted, "{algorithm} {dtype:?}");
    }
}
