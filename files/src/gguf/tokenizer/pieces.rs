//! Merges of SentencePiece's byte-pair encoding, which a file has as scores of the merged pieces.

use std::cmp::Reverse;

use super::vocabulary::Vocabulary;
use crate::LARGEST_TOKENIZER;
use crate::gguf::error::GgufError;
use crate::gguf::header::Header;

/// Key of the scores.
const SCORES: &str = "tokenizer.ggml.scores";

/// Largest number of characters of a piece that others are merged to. SentencePiece makes pieces of
/// 16 at most; what users define may be longer.
const LONGEST: usize = 256;

/// Returns the merges, the first ones first: each piece as all pairs of pieces that make it, by
/// falling score, as transformers converts such a tokenizer.
///
/// # Errors
/// [`GgufError`]: the scores are missing or damaged.
pub(super) fn merges<'h>(
    header: &Header,
    vocabulary: &Vocabulary<'h>,
) -> Result<Vec<(&'h str, &'h str)>, GgufError> {
    let scores = header
        .numbers(SCORES)?
        .ok_or_else(|| header.missing(SCORES))?;
    if scores.len() != vocabulary.len() {
        let (found, tokens) = (scores.len(), vocabulary.len());
        return Err(header.wrong(SCORES, &format!("has {found} scores for {tokens} tokens")));
    }
    let mut all = Vec::new();
    let mut bytes = 0;
    for (number, piece) in vocabulary.merged() {
        let is_first = vocabulary.numbers.get(piece).map(|own| *own as usize) == Some(number);
        if !is_first || piece.chars().take(LONGEST + 1).count() > LONGEST {
            continue;
        }
        let pair = |(at, _): (usize, char)| {
            let (left, right) = piece.split_at(at);
            let numbers = (
                *vocabulary.numbers.get(left)?,
                *vocabulary.numbers.get(right)?,
            );
            Some((numbers, left, right))
        };
        let mut own: Vec<_> = piece.char_indices().skip(1).filter_map(pair).collect();
        // A pair takes its text in `tokenizer.json`, and as much memory as its entry here.
        bytes += own.len() as u64 * (piece.len() + size_of::<(f64, &str, &str)>()) as u64;
        if bytes > LARGEST_TOKENIZER {
            return Err(header.wrong(SCORES, "has more merges than are served"));
        }
        own.sort_unstable();
        all.extend(
            own.into_iter()
                .map(|(_, left, right)| (scores[number], left, right)),
        );
    }
    let longest = |text: &str| Reverse(text.chars().count());
    all.sort_by(|(one, left, right), (other, their_left, their_right)| {
        let by_score = other.total_cmp(one);
        let lengths = (longest(left), longest(right));
        by_score.then_with(|| lengths.cmp(&(longest(their_left), longest(their_right))))
    });
    Ok(all
        .into_iter()
        .map(|(_, left, right)| (left, right))
        .collect())
}
