//! The cost of remembering served texts as NGRAM does: time per token, and memory. It is
//! measured while there is room, and when old texts make way for new ones.
//!
//! ```sh
//! cargo run --release -p lockstep-speculation --example remember
//! ```
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::time::{Duration, Instant};

use lockstep_speculation::Trie;

/// Number of tokens of a text.
const TOKENS: usize = 100_000;
/// Number of tokens of a window: by default, the longest match and the longest draft.
const WINDOW: usize = 16 + 7;
/// Number of tokens of the vocabulary.
const VOCABULARY: u32 = 32_000;
/// Number of tokens of the page that a text repeats.
const PAGE: usize = 1_000;
/// One token in so many is replaced where the page is served with edits.
const EDITED: u32 = 30;
/// Number of runs, of which the fastest is shown.
const RUNS: usize = 5;

fn main() {
    let mut random = Random(1);
    let even: Vec<u32> = (0..TOKENS).map(|_| random.below(VOCABULARY)).collect();
    let words: Vec<u32> = (0..TOKENS).map(|_| random.word()).collect();
    let pages = words[..PAGE].iter().copied().cycle().take(TOKENS);
    let edits: Vec<u32> = pages
        .clone()
        .map(|token| match random.below(EDITED) {
            0 => random.word(),
            _ => token,
        })
        .collect();
    let pages: Vec<u32> = pages.collect();
    let texts = [
        ("fresh, tokens equally likely", even),
        ("fresh, tokens by Zipf's law", words),
        ("a page over and over", pages),
        ("a page over and over, edited", edits),
    ];
    println!(
        "{:<30} {:>9} {:>9} {:>9} {:>9}",
        "text of 100,000 tokens", "capacity", "nodes", "KiB", "ns/token"
    );
    for capacity in [1 << 22, 1 << 20, 1 << 16] {
        for (name, text) in &texts {
            let (nodes, time) = serve(text, capacity);
            println!(
                "{name:<30} {capacity:>9} {nodes:>9} {:>9} {:>9}",
                (nodes as u64 * Trie::NODE_BYTES) >> 10,
                time.as_nanos() / TOKENS as u128
            );
        }
    }
}

/// Takes in all windows of a text. Returns the number of nodes in use afterwards, and the time.
fn serve(text: &[u32], capacity: usize) -> (usize, Duration) {
    let run = |_| {
        let mut trie = Trie::new(capacity);
        let begun = Instant::now();
        for window in text.windows(WINDOW) {
            trie.insert(window);
        }
        let time = begun.elapsed();
        (trie.used(), time)
    };
    let runs = (0..RUNS).map(run);
    runs.min_by_key(|(_, time)| *time).unwrap_or_default()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// Draws the n-th token of the vocabulary with a likelihood of about 1/n.
    fn word(&mut self) -> u32 {
        let even = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        f64::from(VOCABULARY).powf(even) as u32
    }
}
