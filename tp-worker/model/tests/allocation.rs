//! A pass in the steady state allocates nothing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/pass.rs"]
mod pass;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use lockstep_backend::{Axis, Batch, Groups, WorldRows};
use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_collective::{Single, local_group};
use lockstep_model::{
    EagleHead, FileAccess, ForwardLimits, HiddenSource, LoadOptions, Topology, Transformer,
};
use lockstep_types::{AdapterLimits, Dtype, KvCacheDtype};
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

/// Covers prefill, decode, mid-prompt chunks and several blocks of logits, in bf16 and f32.
/// In the first round, the backend may still size buffers that it sizes lazily.
#[test]
fn a_pass_allocates_nothing() {
    let text: Vec<u32> = (0..40).collect();
    let page = |page: usize| page as u32;
    for (name, compute, dtype) in [
        ("qwen3", Dtype::Float32, KvCacheDtype::Float32),
        ("qwen3", Dtype::Bfloat16, KvCacheDtype::Bfloat16),
        ("qwen3_moe", Dtype::Float32, KvCacheDtype::Float32),
        ("glm4_moe", Dtype::Bfloat16, KvCacheDtype::Bfloat16),
        ("gemma4_per_layer", Dtype::Bfloat16, KvCacheDtype::Bfloat16),
    ] {
        let model = lockstep_model_folder::load(&fixture(name)).unwrap();
        let mut backend = cpu(compute);
        let groups = model.kv_groups().len();
        let limits = ForwardLimits {
            max_tokens: 32,
            requests: 1,
            positions: 40,
            groups,
            page_size: 8,
            tree_nodes: 1,
            replays: 0,
            logit_block_rows: 3,
            max_commit: 0,
        };
        let mut transformer = Transformer::load(
            &mut backend,
            &model,
            LoadOptions::new(Axis::World, limits),
            &mut |_| {},
        )
        .unwrap();
        let mut cache = transformer.kv_cache(&mut backend, 5, 8, dtype).unwrap();
        let all: Vec<u32> = (0..32).collect();
        let mut rounds = [0; 2];
        for round in &mut rounds {
            for (range, wanted) in [
                (0..32, &all[..]),
                (0..32, &[31]),
                (32..33, &[0]),
                (33..39, &[]),
            ] {
                let mut pass = Pass::default();
                pass.push(&text, range, 8, page);
                // Groups have caches of their own, and may have equal pages.
                let (cells, pages) = (pass.cells.clone(), pass.pages.clone());
                for _ in 1..groups {
                    pass.cells.extend(&cells);
                    pass.pages.extend(&pages);
                }
                let before = ALLOCATIONS.get();
                transformer
                    .forward(
                        &mut backend,
                        &mut cache,
                        &pass.batch(wanted),
                        None,
                        &mut |_| {},
                    )
                    .unwrap();
                *round += ALLOCATIONS.get() - before;
            }
        }
        assert_eq!(
            rounds[1], 0,
            "{name} {compute:?} allocated {} times",
            rounds[1]
        );
        assert!(ALLOCATIONS.get() > 0, "the counter counts");
    }
}

/// Rows with adapters allocate nothing either, in whole passes and where few logits are wanted.
#[test]
fn a_pass_with_adapters_allocates_nothing() {
    let model = lockstep_model_folder::load(&fixture("llama")).unwrap();
    let mut backend = cpu(Dtype::Bfloat16);
    let limits = ForwardLimits {
        max_tokens: 32,
        requests: 1,
        positions: 32,
        groups: 1,
        page_size: 8,
        tree_nodes: 1,
        replays: 0,
        logit_block_rows: 8,
        max_commit: 0,
    };
    let options = LoadOptions {
        adapters: AdapterLimits { places: 2, rank: 8 },
        ..LoadOptions::new(Axis::World, limits)
    };
    let mut loaded = Transformer::load(&mut backend, &model, options, &mut |_| {}).unwrap();
    let read = loaded.adapter_reader().read(&fixture("../adapters/llama"));
    let read = read.unwrap();
    loaded.place_adapter(&mut backend, 1, &read).unwrap();
    let dtype = KvCacheDtype::Bfloat16;
    let mut cache = loaded.kv_cache(&mut backend, 4, 8, dtype).unwrap();
    let (text, all): (Vec<u32>, Vec<u32>) = ((0..32).collect(), (0..32).collect());
    let mut rounds = [0; 2];
    for round in &mut rounds {
        for (range, wanted, adapter) in [
            (0..31, &all[..31], Some(1)),
            (0..31, &[30], Some(1)),
            (31..32, &[0], Some(1)),
            (31..32, &[0], None),
        ] {
            let mut pass = Pass::default();
            pass.push(&text, range, 8, |page| page as u32);
            let batch = Batch {
                adapters: &[adapter],
                ..pass.batch(wanted)
            };
            let before = ALLOCATIONS.get();
            loaded
                .forward(&mut backend, &mut cache, &batch, None, &mut |_| {})
                .unwrap();
            *round += ALLOCATIONS.get() - before;
        }
    }
    assert_eq!(rounds[1], 0, "allocated {} times", rounds[1]);
}

/// A pass over the rows of several DP ranks allocates nothing, on idle ranks too.
#[test]
fn a_pass_of_several_dp_ranks_allocates_nothing() {
    for (name, tp_size, dp_size) in [("qwen3", 2, 2), ("qwen3", 4, 2), ("mixtral", 2, 2)] {
        std::thread::scope(|scope| {
            for group in local_group(tp_size) {
                scope.spawn(move || {
                    let groups = Groups::form(Box::new(group), dp_size).unwrap();
                    count_on_a_rank(name, on(groups, Dtype::Bfloat16), dp_size);
                });
            }
        });
    }
}

fn count_on_a_rank(name: &str, mut backend: CpuBackend, dp_size: usize) {
    let at = Topology::of(&backend, Axis::World);
    let model = lockstep_model_folder::load(&fixture(name)).unwrap();
    let limits = ForwardLimits {
        max_tokens: 32,
        requests: 1,
        positions: 40,
        groups: 1,
        page_size: 8,
        tree_nodes: 1,
        replays: 0,
        logit_block_rows: 3,
        max_commit: 0,
    };
    let options = LoadOptions::new(Axis::World, limits);
    let mut model = Transformer::load(&mut backend, &model, options, &mut |_| {}).unwrap();
    let dtype = KvCacheDtype::Bfloat16;
    let mut cache = model.kv_cache(&mut backend, 5, 8, dtype).unwrap();
    let (text, all): (Vec<u32>, Vec<u32>) = ((0..40).collect(), (0..32).collect());
    let mut rounds = [0; 2];
    for round in &mut rounds {
        // Tokens that each of two DP ranks takes in, and number of the logits that it wants.
        for parts in [
            [(0..32, 32), (0..32, 32)],
            [(0..32, 1), (0..5, 5)],
            [(32..33, 1), (0..0, 0)],
            [(0..0, 0), (5..9, 0)],
        ] {
            let rows = WorldRows {
                tokens: parts.iter().map(|(range, _)| range.len()).collect(),
                wanted: parts.iter().map(|(_, wanted)| *wanted).collect(),
            };
            assert_eq!(rows.tokens.len(), dp_size);
            let (range, wanted) = parts[at.dp_rank()].clone();
            let mut pass = Pass::default();
            if !range.is_empty() {
                pass.push(&text, range, 8, |page| page as u32);
            }
            let batch = pass.batch(&all[..wanted]);
            let before = ALLOCATIONS.get();
            model
                .forward(&mut backend, &mut cache, &batch, Some(&rows), &mut |_| {})
                .unwrap();
            *round += ALLOCATIONS.get() - before;
        }
    }
    assert_eq!(rounds[1], 0, "{at:?} allocated {} times", rounds[1]);
}

fn cpu(dtype: Dtype) -> CpuBackend {
    on(Box::new(Single::new()), dtype)
}

fn on(groups: impl Into<Groups>, dtype: Dtype) -> CpuBackend {
    let options = CpuOptions {
        threads: 1,
        dtype,
        pin: None,
        isa: None,
    };
    CpuBackend::new(options, groups).unwrap()
}

/// Keeping hidden states, taking them into any head, and drafting a chain and a level of a
/// tree allocate nothing.
#[test]
fn drafting_allocates_nothing() {
    let models = fixture("../../../models");
    let target = lockstep_model_folder::load(&models.join("lockstep-demo-7m")).unwrap();
    let eagle =
        lockstep_model_folder::draft::eagle(&models.join("lockstep-demo-7m-eagle"), &target)
            .unwrap();
    let eagle3 =
        lockstep_model_folder::draft::eagle3(&models.join("lockstep-demo-7m-eagle3"), &target)
            .unwrap();
    let in_turn = lockstep_model_folder::load(&fixture("../nextn/glm4_moe_three")).unwrap();
    let layers = lockstep_model_folder::draft::nextn(None, &in_turn).unwrap();
    for (target, draft) in [(&target, eagle), (&target, eagle3), (&in_turn, layers)] {
        let mut backend = cpu(Dtype::Bfloat16);
        let limits = ForwardLimits {
            max_tokens: 8,
            requests: 1,
            positions: 16,
            groups: 1,
            page_size: 8,
            tree_nodes: 2,
            replays: 0,
            logit_block_rows: 1,
            max_commit: 0,
        };
        let silent = &mut |_| {};
        let mut model = Transformer::load(
            &mut backend,
            target,
            LoadOptions::new(Axis::World, limits),
            silent,
        )
        .unwrap();
        let mut head = EagleHead::load(
            &mut backend,
            &draft,
            target,
            2,
            limits,
            FileAccess::Mapped,
            silent,
        )
        .unwrap();
        model.set_capture(&mut backend, head.capture()).unwrap();
        let dtype = KvCacheDtype::Bfloat16;
        let mut cache = model.kv_cache(&mut backend, 2, 8, dtype).unwrap();
        let mut drafts = head.kv_cache(&mut backend, 2, 8, dtype).unwrap();
        let pass = |range| {
            let mut pass = Pass::default();
            pass.push(&[5; 16], range, 8, |page| page as u32);
            pass
        };
        let (prompt, one, mut two) = (pass(0..6), pass(6..7), pass(6..8));
        two.rows[0].mask = Some(0);
        two.masks = vec![1, 2];
        two.positions = vec![6; 2];
        let mut rounds = [0; 2];
        for round in &mut rounds {
            let before = ALLOCATIONS.get();
            model
                .forward(
                    &mut backend,
                    &mut cache,
                    &prompt.batch(&[5]),
                    None,
                    &mut |_| {},
                )
                .unwrap();
            let features = model.features().unwrap();
            head.feed_features(&mut backend, features, &[0, 1, 2, 3, 4, 5])
                .unwrap();
            let (tables, root) = (model.tables(), HiddenSource::Root(1));
            let batch = prompt.batch(&[5]);
            match head.layers() {
                1 => head.take_in(&mut backend, &mut drafts, tables, &batch, &[1]),
                _ => {
                    let rows = (&[1][..], &[true][..]);
                    head.take_in_turn(&mut backend, &mut drafts, tables, &batch, rows)
                }
            }
            .unwrap();
            head.logits(&mut backend, tables, &[root]).unwrap();
            head.feed_hidden(&mut backend, 1, &[root]).unwrap();
            head.forward(&mut backend, &mut drafts, tables, &one.batch(&[]))
                .unwrap();
            let (mut sources, mut level) = ([root, HiddenSource::Output(0)], 1);
            if head.layers() > 1 {
                // Outputs of two layers have no logits at once.
                (sources, level) = ([HiddenSource::Output(0); 2], 2);
            }
            head.logits(&mut backend, tables, &sources).unwrap();
            head.feed_hidden(&mut backend, level, &sources).unwrap();
            head.forward(&mut backend, &mut drafts, tables, &two.batch(&[]))
                .unwrap();
            cache.copy_cells(&mut backend, 0, &[(5, 4), (4, 3)]);
            *round += ALLOCATIONS.get() - before;
        }
        assert_eq!(
            rounds[1], 0,
            "{:?} allocated {} times",
            draft.kind, rounds[1]
        );
    }
}
