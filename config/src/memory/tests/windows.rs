//! Caches of a model of which one layer has a sliding window.

use std::num::NonZeroUsize;

use super::*;

/// The model with a window of 20 positions in its first layer.
fn windowed() -> &'static ModelConfig {
    static MODEL: OnceLock<ModelConfig> = OnceLock::new();
    MODEL.get_or_init(|| {
        let mut model = model();
        model.layers[0].attention_mut().unwrap().window = NonZeroUsize::new(20);
        model
    })
}

proptest! {
    /// The cache takes the memory that there is. Windows leave room for more tokens.
    #[test]
    fn windows_leave_room_for_more_tokens(
        available in 0_u64..(1 << 24),
        page_size in 1_usize..70,
        max_running_requests in 1_usize..200,
        chunk in 1_usize..512,
    ) {
        let mut without = Sizing { mem_fraction_static: 1.0, ..sizing() };
        without.engine.page_size = page_size;
        without.engine.step = step(max_running_requests, Some(chunk));
        let mut sizing = Sizing { mem_fraction_static: 1.0, ..self::sizing() };
        sizing.engine = EngineShape { model: windowed(), ..without.engine };
        let machine = Hardware { total_memory: 1 << 24, available_memory: available, ..machine() };
        let tokens = |sizing: &Sizing<'_>| {
            let sized = size(sizing, &machine, &[]).ok()?.value.0;
            Some((sized.num_pages - 1) * page_size)
        };
        if let (Some(found), Some(fewer)) = (tokens(&sizing), tokens(&without)) {
            prop_assert!(found >= fewer);
            let node = sizing.node(true);
            let most = sizing.window_tokens().unwrap_or(u64::MAX);
            let bytes = |tokens: usize| {
                let windows = most.min(tokens as u64) * node.window_per_token;
                tokens as u64 * node.per_token + windows + node.weights + node.activations
            };
            prop_assert!(bytes(found) <= available);
            let useful = (512 + 2_usize).next_multiple_of(page_size) * max_running_requests;
            prop_assert!(found == useful || bytes(found + page_size) > available);
        }
    }
}

/// The resolved configuration tells every role the same pages.
#[test]
fn windows_have_pages_for_all_requests_and_for_the_prefix_cache() {
    let line = "--max-running-requests 4 --chunked-prefill-size 64 --page-size 8";
    let (mut engine, _) = resolve_line(line).expect("fits");
    assert_eq!(engine.kv_pages().window, engine.kv.num_pages);
    engine.model = windowed().clone();
    // Windows and two tokens in flight are 3 pages, and 4 at the ends of pages; two chunks are
    // in flight; 4 windows at the ends of prompts are kept. Page 0 is for padding.
    assert_eq!(engine.kv_pages().window, 4 * (3 + 4) + 2 * 8 + 4 * 4 + 1);
    engine.kv.num_pages = 9;
    assert_eq!(engine.kv_pages().window, 9);
}
