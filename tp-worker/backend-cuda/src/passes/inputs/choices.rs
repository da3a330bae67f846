//! Lists of a batch that tell kernels how to choose tokens.

use lockstep_backend::{Choice, ChoiceBatch, ChoiceLimits, How};

use super::List;

/// Words of an element of each list, as in `choices.cuh`.
const CHOICE_WORDS: usize = 9;
const USE_WORDS: usize = 2;
const DRAFTED_WORDS: usize = 4;
/// Value in place of parents: the drafts are a chain.
const CHAIN: u32 = u32::MAX;

/// Sizes of the lists for the largest batch: words of an element, and number of elements.
pub(super) fn words(limits: &ChoiceLimits) -> [(usize, usize); 3] {
    [
        (CHOICE_WORDS + DRAFTED_WORDS, limits.requests),
        (USE_WORDS, limits.rows),
        (1, limits.parents),
    ]
}

/// Makes room for a list of so many words, and calls the function that writes them.
type MakeList<'a> = dyn FnMut(List, usize, &mut dyn FnMut(&mut [u32])) + 'a;

/// Writes all lists of `batch` except the parents.
pub(super) fn fill(batch: &ChoiceBatch<'_>, list: &mut MakeList<'_>) {
    let choices = batch.choices;
    list(List::Choices, CHOICE_WORDS * choices.len(), &mut |to| {
        for (to, choice) in to.as_chunks_mut().0.iter_mut().zip(choices) {
            *to = choice_words(choice);
        }
    });
    let rows = batch.rows;
    list(List::Uses, USE_WORDS * rows.len(), &mut |to| {
        for (to, row) in to.as_chunks_mut().0.iter_mut().zip(rows) {
            *to = [row.request, row.depth];
        }
    });
    let drafted = batch.drafted;
    list(List::Drafted, DRAFTED_WORDS * drafted.len(), &mut |to| {
        for (to, row) in to.as_chunks_mut().0.iter_mut().zip(drafted) {
            let parents = row.parents.unwrap_or(CHAIN);
            *to = [row.logits, row.token, row.nodes, parents];
        }
    });
}

fn choice_words(choice: &Choice) -> [u32; CHOICE_WORDS] {
    let halves = |value: u64| [value as u32, (value >> 32) as u32];
    let ([seed, seed_high], [position, position_high]) =
        (halves(choice.seed), halves(choice.position));
    let (how, [temperature, top_p, min_p], top_k) = match choice.how {
        How::Host => (0, [0.0; 3], 0),
        How::Greedy => (1, [0.0; 3], 0),
        How::Sample {
            temperature,
            top_k,
            top_p,
            min_p,
        } => (2, [temperature, top_p, min_p], top_k),
    };
    let [temperature, top_p, min_p] = [temperature, top_p, min_p].map(f32::to_bits);
    [
        how,
        seed,
        seed_high,
        position,
        position_high,
        temperature,
        top_p,
        min_p,
        top_k,
    ]
}
