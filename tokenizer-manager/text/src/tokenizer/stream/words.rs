//! Pre-tokenizers that return their words one after the other.

use std::borrow::Cow;

use onig::{MatchParam, Regex, Region, SearchOptions};
use serde_json::Value;
use tokenizers::Tokenizer as HfTokenizer;

use super::super::{Fields, bound, decoder};
use super::{EncodeError, failed};

/// Maximum stack of one match of a pattern, in entries of some 40 bytes, and maximum retries. A
/// pattern gives up beyond, mostly in a run of a million spaces.
const MATCH_STACK: u32 = 1 << 20;
const MATCH_RETRIES: u32 = 10_000_000;

/// Pattern of a byte-level pre-tokenizer that has none of its own (GPT-2, `encoder.py`).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The pre-tokenizers of a tokenizer.
#[derive(Debug)]
pub(super) struct Words {
    splitters: Vec<Splitter>,
    byte_level: bool,
}

type Emit<'e> = dyn FnMut(&str) -> Result<(), EncodeError> + 'e;

#[derive(Debug)]
enum Splitter {
    /// Splits at matches of a pattern. The text between matches is kept if `gaps`.
    Pattern { regex: Regex, gaps: bool },
    /// Splits off digits, one by one or in runs.
    Digits { individual: bool },
    /// Replaces spaces by marks, and may put a mark before the text.
    Metaspace { mark: char, prepend: Prepend },
    /// Splits before marks: before each mark, or only before the first of a run.
    Mark { mark: char, each: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prepend {
    Never,
    First,
    Always,
}

impl Words {
    /// Returns `None` if a pre-tokenizer is not supported here.
    pub(super) fn new(fields: &Fields, tokenizer: &HfTokenizer) -> Option<Self> {
        let mut words = Self {
            splitters: Vec::new(),
            byte_level: false,
        };
        words.add(&fields.pre_tokenizer)?;
        if !words.byte_level && never_merged_before(MARK, fields, tokenizer) {
            words.splitters.push(Splitter::Mark {
                mark: MARK,
                each: false,
            });
        }
        Some(words)
    }

    /// Calls `emit` with each word of `text`, in order; `start` is true if `text` begins the
    /// whole text.
    pub(super) fn each(
        &self,
        text: &str,
        start: bool,
        emit: &mut Emit<'_>,
    ) -> Result<(), EncodeError> {
        split(&self.splitters, text, start, emit)
    }

    /// Returns a word in the vocabulary's spelling.
    pub(super) fn spell<'w>(&self, word: &'w str, buffer: &'w mut String) -> &'w str {
        if !self.byte_level {
            return word;
        }
        buffer.clear();
        buffer.extend(word.bytes().map(decoder::char_of));
        buffer
    }

    fn add(&mut self, json: &Value) -> Option<()> {
        if self.byte_level {
            // Later steps would see the alphabet of bytes.
            return None;
        }
        match json["type"].as_str() {
            None => json.is_null().then_some(()),
            Some("Sequence") => {
                let mut all = json["pretokenizers"].as_array()?.iter();
                all.try_for_each(|step| self.add(step))
            }
            Some("Split") => {
                let pattern = json["pattern"]["Regex"].as_str()?;
                let invert = json["invert"].as_bool()?;
                let gaps = match json["behavior"].as_str()? {
                    "Isolated" => true,
                    "Removed" if invert => false,
                    _ => return None,
                };
                self.pattern(pattern, gaps)
            }
            Some("ByteLevel") => {
                if json["add_prefix_space"].as_bool()? {
                    return None;
                }
                if json["use_regex"].as_bool().unwrap_or(true) {
                    self.pattern(GPT2, true)?;
                }
                self.byte_level = true;
                Some(())
            }
            Some("Digits") => {
                let individual = json["individual_digits"].as_bool()?;
                self.splitters.push(Splitter::Digits { individual });
                Some(())
            }
            Some("Metaspace") => self.metaspace(json),
            Some(_) => None,
        }
    }

    fn pattern(&mut self, pattern: &str, gaps: bool) -> Option<()> {
        let regex = Regex::new(pattern).ok()?;
        self.splitters.push(Splitter::Pattern { regex, gaps });
        Some(())
    }

    fn metaspace(&mut self, json: &Value) -> Option<()> {
        let mut characters = json["replacement"].as_str()?.chars();
        let (Some(mark), None) = (characters.next(), characters.next()) else {
            return None;
        };
        let prepend = match json["prepend_scheme"].as_str() {
            _ if json["add_prefix_space"].as_bool() == Some(false) => Prepend::Never,
            None | Some("always") => Prepend::Always,
            Some("first") => Prepend::First,
            Some("never") => Prepend::Never,
            Some(_) => return None,
        };
        if !self.splitters.is_empty() {
            return None;
        }
        self.splitters.push(Splitter::Metaspace { mark, prepend });
        if json["split"].as_bool().unwrap_or(true) {
            self.splitters.push(Splitter::Mark { mark, each: true });
        }
        Some(())
    }
}

/// SentencePiece's mark for a space.
const MARK: char = '▁';

/// Returns true if no token reaches from another character over to `mark`, so that the text on
/// each side of a mark is merged on its own. Every character must have tokens, since a run of
/// unknown characters may be one token.
fn never_merged_before(mark: char, fields: &Fields, tokenizer: &HfTokenizer) -> bool {
    let model = &fields.model;
    let reaches_over = |token: &String| {
        let mut before = token.chars();
        let after = token.chars().skip(1);
        after
            .into_iter()
            .any(|c| before.next() != Some(mark) && c == mark)
    };
    model.kind == "BPE"
        && model.byte_fallback
        && model.dropout.is_none()
        && model.continuing_subword_prefix.is_none()
        && model.end_of_word_suffix.is_none()
        && bound::fallback_covers_bytes(tokenizer)
        && !tokenizer.get_vocab(false).keys().any(reaches_over)
}

fn split(
    splitters: &[Splitter],
    text: &str,
    start: bool,
    emit: &mut Emit<'_>,
) -> Result<(), EncodeError> {
    if text.is_empty() {
        return Ok(());
    }
    match splitters.split_first() {
        None => emit(text),
        Some((splitter, rest)) => {
            splitter.each(text, start, &mut |part| split(rest, part, false, emit))
        }
    }
}

impl Splitter {
    fn each(&self, text: &str, start: bool, emit: &mut Emit<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Pattern { regex, gaps } => {
                let mut from = 0;
                matches(regex, text, |begin, end| {
                    if *gaps {
                        emit(&text[from..begin])?;
                    }
                    from = end;
                    emit(&text[begin..end])
                })?;
                if *gaps { emit(&text[from..]) } else { Ok(()) }
            }
            Self::Digits { individual } => cut(
                text,
                |before, c| c.is_numeric() != before.is_numeric() || *individual && c.is_numeric(),
                emit,
            ),
            Self::Metaspace { mark, prepend } => {
                let spelled = match text.contains(' ') {
                    true => Cow::Owned(text.replace(' ', mark.encode_utf8(&mut [0; 4]))),
                    false => Cow::Borrowed(text),
                };
                let wanted = *prepend == Prepend::Always || *prepend == Prepend::First && start;
                if wanted && !spelled.starts_with(*mark) {
                    return emit(&format!("{mark}{spelled}"));
                }
                emit(&spelled)
            }
            Self::Mark { mark, each } => cut(
                text,
                |before, c| c == *mark && (*each || before != *mark),
                emit,
            ),
        }
    }
}

/// Cuts a text between two characters wherever `between` returns true.
fn cut(
    text: &str,
    between: impl Fn(char, char) -> bool,
    emit: &mut Emit<'_>,
) -> Result<(), EncodeError> {
    let (mut from, mut before) = (0, None);
    for (at, c) in text.char_indices() {
        if before.is_some_and(|before| between(before, c)) {
            emit(&text[from..at])?;
            from = at;
        }
        before = Some(c);
    }
    emit(&text[from..])
}

/// Calls `each` with begin and end of every match. The matches are those of `onig`'s `find_iter`,
/// which panics if a pattern gives up.
fn matches(
    regex: &Regex,
    text: &str,
    mut each: impl FnMut(usize, usize) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let mut region = Region::new();
    let (mut from, mut last_end) = (0, None);
    while from <= text.len() {
        region.clear();
        let mut limits = MatchParam::default();
        limits.set_match_stack_limit(MATCH_STACK);
        limits.set_retry_limit_in_match(MATCH_RETRIES);
        let options = SearchOptions::SEARCH_OPTION_NONE;
        let found = regex
            .search_with_param(text, from, text.len(), options, Some(&mut region), limits)
            .map_err(|error| failed(format!("its pattern gives up: {}", error.description())))?;
        let Some((begin, end)) = found.and_then(|_| region.pos(0)) else {
            break;
        };
        if begin == end && last_end == Some(end) {
            from += text[from..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        (from, last_end) = (end, Some(end));
        each(begin, end)?;
    }
    Ok(())
}
