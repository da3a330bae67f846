//! Sizes that ranks agree on.

use lockstep_types::Dtype;

use super::support::config;
use crate::worker::WorkerLimits;

/// Two buffers per rank hold a step, as long as they fit a container's shared memory.
#[test]
fn exchange_buffers_hold_a_step_or_stay_small() {
    let elements = |tp_size: usize, hidden: usize, tokens: usize| {
        let mut config = config(tp_size, 16, Dtype::Float32);
        config.model.hidden_size = hidden;
        let mut limits = WorkerLimits::new(&config);
        limits.step.tokens = tokens;
        limits.exchange_elements(&config)
    };
    assert_eq!(elements(2, 64, 100), 64 << 10, "at least 256 KiB");
    assert_eq!(elements(2, 2048, 520), 2048 * 520);
    assert_eq!(elements(4, 2048, 512), 2048 * 512);
    for ranks in [2, 3, 4, 8, 64] {
        let bytes = elements(ranks, 8192, 1 << 20) * 4 * 2 * ranks;
        assert!(bytes <= 32 << 20, "{ranks} ranks take {bytes} bytes");
    }
    assert_eq!(elements(2, usize::MAX, 2), 2 << 20, "no overflow");
}
