//! The token that an output goes on with, where its constraint leaves one text alone.

use crate::Vocabulary;

/// Returns the token that spells most of a forced text; `None` if several texts may follow.
///
/// A text is forced if each allowed token is a beginning of the longest one. If only the output's
/// end is allowed, the first end token is returned. Shorter tokens may spell the same text, so
/// a forced token is a likely draft, and no choice.
pub(crate) fn forced(allowed: &[u32], vocabulary: &Vocabulary) -> Option<u32> {
    let ends = vocabulary.end_tokens();
    let mut longest: Option<u32> = None;
    for token in tokens(allowed) {
        let Some(known) = longest else {
            longest = Some(token);
            continue;
        };
        let (known_ends, ends) = (ends.contains(&known), ends.contains(&token));
        if known_ends || ends {
            if known_ends != ends {
                return None;
            }
            continue;
        }
        let (known, word) = (vocabulary.word(known), vocabulary.word(token));
        if word.len() > known.len() && word.starts_with(known) {
            longest = Some(token);
        } else if !known.starts_with(word) {
            return None;
        }
    }
    let longest = longest?;
    match ends.contains(&longest) {
        true => ends.first().copied(),
        false => Some(longest),
    }
}

/// Returns the tokens of a mask, ascending.
fn tokens(mask: &[u32]) -> impl Iterator<Item = u32> {
    mask.iter().enumerate().flat_map(|(at, word)| {
        let more = |left: &u32| Some(left & left.wrapping_sub(1));
        std::iter::successors(Some(*word), more)
            .take_while(|left| *left != 0)
            .map(move |left| at as u32 * 32 + left.trailing_zeros())
    })
}
