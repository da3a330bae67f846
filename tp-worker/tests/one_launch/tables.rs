//! The bytes that page tables add to the copy of a batch.

use super::*;
use levels::run_behind;

/// Number of requests of a batch.
const TWO: u32 = 2;
/// Number of tokens of a page by default.
const PAGE: u32 = 16;
/// Number of tokens of a short prompt and of a long one, in whole pages.
const PROMPTS: [u32; 2] = [4 * PAGE, 15 * PAGE];

/// Returns the bytes that each decode step copies, for each of [`PROMPTS`].
fn brought(drafts: Drafts) -> [Vec<u64>; 2] {
    let mut args = args(drafts, true);
    args.model.context_length = Some(512);
    args.memory.max_total_tokens = Some(2048);
    let config = resolved(&args);
    assert_eq!(config.kv.page_size, PAGE as usize);
    PROMPTS.map(|prompt| {
        let run = run_behind(&config, (TWO, prompt), &[None; 8]);
        run.steps.iter().map(|step| step.brought).collect()
    })
}

/// With a longer context a step copies one word more for each page, and nothing else. With
/// drafts each word is copied twice: in the batch's tables, and in the tables of the first pass
/// of the chains.
#[test]
fn a_step_brings_a_word_for_each_page_of_its_requests() {
    if calls(c"cuInit").is_none() {
        return; // A real driver does not count.
    }
    let more = u64::from(4 * TWO * (PROMPTS[1] - PROMPTS[0]) / PAGE);
    let [short, long] = brought(None);
    assert!(
        short
            .iter()
            .zip(&long)
            .all(|(short, long)| long - short == more)
    );
    // Texts differ, and so do the steps in which requests begin a page.
    let (more, other) = (2 * more, u64::from(2 * 4 * TWO));
    let [short, long] = brought(Some(("STANDALONE", [1, 1, 2])));
    for (short, long) in short.iter().zip(&long) {
        let found = long - short;
        assert!(found.abs_diff(more) <= other, "{found} bytes for {more}");
    }
}
