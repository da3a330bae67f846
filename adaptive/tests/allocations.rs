//! A decision allocates nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Decider, DepthRange, Policies, Row, Seen, Tier,
};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps `alloc`'s contract for the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decisions_allocate_nothing() {
    let depths = [0, 1, 2, 3, 5, 7];
    let tier = |depth| Tier {
        depth,
        tokens: depth + 1,
    };
    let slots = vec![
        BatchSlot::new(1, depths.to_vec()),
        BatchSlot::new(8, vec![0, 1]),
    ];
    let policies = Policies::builtin();
    for policy in policies.iter() {
        let config =
            AdaptiveConfig::new(policy.name(), 3, depths.map(tier).to_vec(), slots.clone());
        let mut decider = Decider::new(&config, &policies, &[]).unwrap();
        let mut told = Vec::with_capacity(2000);
        let before = COUNT.get();
        for step in 1..2000u32 {
            decider.begin();
            let decodes = 1 + step / 50 % 16;
            let depth = decider.depth();
            let mut seen = Seen {
                depth,
                decodes,
                tokens: decodes * (depth + 1),
                draft_us: 500 * depth,
                verify_us: 9_000 + step * 7919 % 1000,
                ..Seen::default()
            };
            for row in 0..decodes {
                seen.count(depth, (step + row) % (2 + step / 500));
            }
            let row = Row {
                step: step.into(),
                depth,
                depths: u32::MAX,
                decodes: seen.decodes,
                seen,
                ..Row::default()
            };
            told.push(decider.decide(&[row], DepthRange::default()));
            std::hint::black_box((decider.digest(), decider.outlook()));
        }
        assert_eq!(COUNT.get(), before, "{}", policy.name());
        assert!(policy.name() == "static" || told.iter().any(|depth| *depth != told[0]));
    }
}
