use proptest::prelude::*;

use super::{StopError, StopMatch, StopMatcher};

/// Returns the text given out for `pieces`, the match, and the number of pieces that it took.
fn run(stops: &[&str], include: bool, pieces: &[&str]) -> (String, Option<usize>, usize) {
    let mut matcher = StopMatcher::new(stops, include).unwrap();
    let mut out = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        if let Some(StopMatch { index: stop }) = matcher.push(piece, &mut out) {
            return (out, Some(stop), index + 1);
        }
    }
    matcher.finish(&mut out);
    (out, None, pieces.len())
}

/// Computes the result by the definition: searches the whole text after every piece.
fn oracle(stops: &[&str], include: bool, pieces: &[&str]) -> (String, Option<usize>, usize) {
    let mut text = String::new();
    for (count, piece) in pieces.iter().enumerate() {
        text.push_str(piece);
        let found = stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| Some((text.find(stop)?, index)))
            .min();
        if let Some((start, index)) = found {
            text.truncate(if include {
                start + stops[index].len()
            } else {
                start
            });
            return (text, Some(index), count + 1);
        }
    }
    (text, None, pieces.len())
}

#[test]
fn an_empty_stop_string_is_refused() {
    assert_eq!(
        StopMatcher::new(&["a", ""], false).unwrap_err(),
        StopError::Empty
    );
}

#[test]
fn no_stop_strings_hold_nothing_back() {
    assert_eq!(run(&[], false, &["a", "b"]), ("ab".to_owned(), None, 2));
}

#[test]
fn a_stop_string_across_pieces_is_never_shown() {
    let mut matcher = StopMatcher::new(&["\nUser:"], false).unwrap();
    let mut out = String::new();
    for (piece, shown) in [
        ("Hi", "Hi"),
        ("\n", "Hi"),
        ("Us", "Hi"),
        ("es", "Hi\nUses"),
        ("\n\nUs", "Hi\nUses\n"),
    ] {
        assert_eq!(matcher.push(piece, &mut out), None);
        assert_eq!(out, shown);
    }
    assert_eq!(
        matcher.push("er: more", &mut out),
        Some(StopMatch { index: 0 })
    );
    assert_eq!(
        matcher.push("ignored", &mut out),
        Some(StopMatch { index: 0 })
    );
    matcher.finish(&mut out);
    assert_eq!(out, "Hi\nUses\n");
}

#[test]
fn the_earliest_start_wins_then_the_first_listed() {
    assert_eq!(
        run(&["bc", "abcd"], false, &["xabcde"]),
        ("x".to_owned(), Some(1), 1)
    );
    assert_eq!(
        run(&["abc", "ab"], true, &["xabc"]),
        ("xabc".to_owned(), Some(0), 1)
    );
    assert_eq!(
        run(&["ab", "abc"], true, &["xabc"]),
        ("xab".to_owned(), Some(0), 1)
    );
    // A complete stop string ends the text. It does not wait for a longer one to become complete.
    assert_eq!(
        run(&["abcd", "bc"], false, &["xabc", "d"]),
        ("xa".to_owned(), Some(1), 1)
    );
}

#[test]
fn included_stop_strings_hold_nothing_back() {
    let mut matcher = StopMatcher::new(&["END"], true).unwrap();
    let mut out = String::new();
    matcher.push("an EN", &mut out);
    assert_eq!(out, "an EN");
    assert!(matcher.push("D and more", &mut out).is_some());
    assert_eq!(out, "an END");
}

#[test]
fn stop_strings_do_not_count_where_told_so() {
    let mut matcher = StopMatcher::new(&["aba"], false).unwrap();
    let mut out = String::new();
    matcher.push_unmatched("xababa", &mut out);
    assert_eq!((out.as_str(), matcher.matched()), ("xabab", None));
    assert_eq!(matcher.push("ba", &mut out), Some(StopMatch { index: 0 }));
    assert_eq!(out, "xabab");
}

#[test]
fn unfinished_starts_are_given_out_at_the_end() {
    assert_eq!(
        run(&["日本語"], false, &["日", "本"]),
        ("日本".to_owned(), None, 2)
    );
    assert_eq!(
        run(&["日本語"], false, &["日", "日本", "語x"]),
        ("日".to_owned(), Some(0), 3)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn matches_agree_with_searching_the_whole_text(
        stops in proptest::collection::vec("[abé]{1,5}", 0..4),
        pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
        include: bool,
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(run(&stops, include, &pieces), oracle(&stops, include, &pieces));
    }

    #[test]
    fn no_more_is_held_back_than_needed(
        stops in proptest::collection::vec("[ab]{1,5}", 1..4),
        pieces in proptest::collection::vec("[abc]{0,4}", 0..12),
    ) {
        let mut matcher = StopMatcher::new(&stops, false).unwrap();
        let (mut out, mut text) = (String::new(), String::new());
        for piece in &pieces {
            text.push_str(piece);
            if matcher.push(piece, &mut out).is_some() {
                break;
            }
            let longest = (0..=text.len())
                .find(|&at| stops.iter().any(|stop| stop.len() > text.len() - at && stop.starts_with(&text[at..])));
            prop_assert_eq!(out.len(), longest.unwrap());
        }
    }
}
