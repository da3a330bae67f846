//! A pass in the steady state allocates nothing.

#[path = "support/pass.rs"]
mod pass;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use lockstep_backend::{Backend, KvDType};
use lockstep_backend_cpu::{Compute, CpuBackend, CpuOptions, WeightFormat};
use lockstep_collective::Single;
use lockstep_config::ModelConfig;
use lockstep_model::{ForwardLimits, Transformer};
use pass::{Pass, fixture};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter is
// a plain thread-local that allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Prefill, decode, mid-prompt chunks and several blocks of logits, in bf16
/// and f32. The first round may size what the backend sizes lazily.
#[test]
fn a_pass_allocates_nothing() {
    let text: Vec<u32> = (0..40).collect();
    let page = |page: usize| page as u32;
    for (compute, dtype) in [(Compute::F32, KvDType::F32), (Compute::Bf16, KvDType::Bf16)] {
        let model = ModelConfig::load(&fixture("qwen3")).unwrap();
        let options = CpuOptions {
            threads: 1,
            dtype: compute,
            weights: WeightFormat::Native,
            pin: None,
            isa: None,
        };
        let mut backend = CpuBackend::new(options, Box::new(Single::new())).unwrap();
        let limits = ForwardLimits {
            max_tokens: 32,
            positions: 40,
            logit_block_rows: 3,
        };
        let mut transformer = Transformer::load(&mut backend, &model, limits, &mut |_| {}).unwrap();
        let mut cache = backend
            .kv_cache(&transformer.kv_shape(5, 8, dtype))
            .unwrap();
        let all: Vec<u32> = (0..32).collect();
        let mut rounds = [0; 2];
        for round in &mut rounds {
            for (range, wanted) in [(0..32, &all[..]), (32..33, &[0]), (33..39, &[])] {
                let mut pass = Pass::default();
                pass.push(&text, range, 8, page);
                let before = ALLOCATIONS.get();
                transformer
                    .forward(&mut backend, &mut cache, &pass.batch(wanted), &mut |_| {})
                    .unwrap();
                *round += ALLOCATIONS.get() - before;
            }
        }
        assert_eq!(rounds[1], 0, "{compute:?} allocated {} times", rounds[1]);
        assert!(ALLOCATIONS.get() > 0, "the counter counts");
    }
}
