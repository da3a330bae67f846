use proptest::prelude::*;

use super::*;

/// Returns all places, found by the definition.
fn naive(text: &[u32], shortest: usize, longest: usize) -> Vec<Match> {
    let places = (1..text.len()).rev().map(|end| Match {
        end,
        len: common_end(&text[..end], text, longest),
    });
    places.filter(|found| found.len >= shortest).collect()
}

fn longest_of(found: &[Match]) -> Option<usize> {
    found.iter().map(|found| found.len).max()
}

#[test]
fn a_repeated_phrase_is_found_where_it_was_said_last() {
    let text = [1, 2, 3, 9, 1, 2, 3, 8, 2, 3];
    let mut history = History::new(1, 4);
    history.index(&text);
    let mut found = Vec::new();
    history.find(&text, false, &mut found);
    assert_eq!(found, [Match { end: 7, len: 2 }, Match { end: 3, len: 2 }]);
}

#[test]
fn short_texts_and_texts_without_repetition_have_no_matches() {
    let mut history = History::new(2, 8);
    let mut found = vec![Match { end: 1, len: 1 }];
    for text in [&[][..], &[1], &[1, 1], &[1, 2, 3, 1]] {
        history.index(text);
        history.find(text, true, &mut found);
        assert_eq!(found, []);
    }
}

#[test]
fn tables_are_cleared_for_a_text_that_is_looked_up_in_alone() {
    let text: Vec<u32> = (0..5000).chain([7]).collect();
    let mut history = History::new(1, 4);
    history.index(&text);
    let heads = |history: &History| -> Vec<Vec<u32>> {
        let chains = history.chains.iter();
        chains.map(|chain| chain.heads.clone()).collect()
    };
    let full = heads(&history);
    // Two requests begin and never draft.
    history.clear();
    history.clear();
    assert_eq!(heads(&history), full);
    let mut found = Vec::new();
    for short in [&[7][..], &[7, 8, 7]] {
        history.clear();
        history.index(short);
        history.find(short, true, &mut found);
        assert_eq!(found.len(), short.len() / 2, "{found:?}");
    }
}

#[test]
fn a_common_token_does_not_hide_a_long_match() {
    // The phrase stands once, at the beginning. Its last token is everywhere.
    let mut text = vec![11, 12, 13, 14, 5];
    text.extend((0..4000).flat_map(|n| [100 + n, 5]));
    text.extend([12, 13, 14, 5]);
    let mut history = History::new(1, 16);
    history.index(&text);
    let mut found = Vec::new();
    history.find(&text, true, &mut found);
    assert_eq!(found[0], Match { end: 5, len: 4 });
    assert!(found.len() <= 2 * PLACES);
}

proptest! {
    // Texts of fewer than PLACES tokens, where the look-up is exact.
    #[test]
    fn matches_are_the_naive_ones(
        text in prop::collection::vec(0u32..4, 0..PLACES),
        shortest in 1usize..5,
        more in 0usize..8,
        known in 0usize..PLACES,
        other in prop::collection::vec(0u32..4, 0..20),
    ) {
        let longest = shortest + more;
        let mut history = History::new(shortest, longest);
        // Another request's text, then the text in two parts.
        history.index(&other);
        history.clear();
        history.index(&text[..known.min(text.len())]);
        history.index(&text);
        let expected = naive(&text, shortest, longest);
        let mut found = Vec::new();
        history.find(&text, true, &mut found);
        found.sort_by_key(|found| std::cmp::Reverse(found.end));
        prop_assert_eq!(&found, &expected);
        history.find(&text, false, &mut found);
        prop_assert_eq!(longest_of(&found), longest_of(&expected));
        prop_assert!(found.iter().all(|found| expected.contains(found)));
        let best = longest_of(&expected);
        let of_best = |found: &[Match]| found.iter().filter(|m| Some(m.len) == best).count();
        prop_assert_eq!(of_best(&found), of_best(&expected));
    }
}
