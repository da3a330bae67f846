//! The filter `wordwrap`, Python's `textwrap` by paragraphs.

use std::sync::LazyLock;

use minijinja::{Error, State, Value};
use onig::Regex;

use super::super::super::meter::{ELEMENT, Text, charge};
use super::super::args::{Args, text, whole};
use super::super::html::like;
use super::super::text::{is_space, split_lines};
use super::super::value::fail;

type Result<T, E = Error> = std::result::Result<T, E>;

pub(super) fn wordwrap(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [width, long, between, hyphens] = args.bind([
        "width",
        "break_long_words",
        "wrapstring",
        "break_on_hyphens",
    ])?;
    let is = |flag: Option<Value>| flag.is_none_or(|flag| flag.is_true());
    let wrap = Wrap {
        width: usize::try_from(whole(width.as_ref(), 79)?).unwrap_or(0),
        break_long: is(long),
        hyphens: is(hyphens),
    };
    let between = between.filter(|between| !between.is_none());
    let between = between.unwrap_or(Value::from("\n"));
    let between = text(&between)?;
    let mut out = Text::default();
    for (at, paragraph) in split_lines(text(value)?, false).iter().enumerate() {
        if wrap.width == 0 {
            return Err(fail("the width must be above zero"));
        }
        if at > 0 {
            out.push_str(between)?;
        }
        for (at, line) in wrap.lines(paragraph)?.iter().enumerate() {
            if at > 0 {
                out.push_str(between)?;
            }
            out.push_str(line)?;
        }
    }
    Ok(like(value, out.into_string()))
}

struct Wrap {
    width: usize,
    break_long: bool,
    hyphens: bool,
}

/// `TextWrapper.wordsep_re` and `wordsep_simple_re`.
static WORDS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let (space, other) = (r"[\t\n\x0b\x0c\r ]", r"[^\t\n\x0b\x0c\r ]");
    let (letter, punctuation) = (r"[^\d\W]", r#"[\w!"'&.,?]"#);
    let pattern = format!(
        "{space}+|(?<={punctuation})-{{2,}}(?=\\w)|{other}+?(?:-(?:(?<={letter}{letter}-)|(?<={letter}-{punctuation}-))\
         (?={letter}-?{letter})|(?={space}|\\z)|(?<={punctuation})(?=-{{2,}}\\w))"
    );
    Regex::new(&pattern).ok()
});
static SPACES: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[\t\n\x0b\x0c\r ]+").ok());

impl Wrap {
    /// The words and what is between them.
    fn chunks<'t>(&self, text: &'t str) -> Result<Vec<&'t str>> {
        let pattern = if self.hyphens { &*WORDS } else { &*SPACES };
        let pattern = pattern
            .as_ref()
            .ok_or_else(|| fail("wordwrap has no pattern"))?;
        let mut chunks = Vec::new();
        let mut end = 0;
        for (start, stop) in pattern.find_iter(text) {
            charge(ELEMENT)?;
            chunks.push(&text[end..start]);
            chunks.push(&text[start..stop]);
            end = stop;
        }
        chunks.push(&text[end..]);
        chunks.retain(|chunk| !chunk.is_empty());
        chunks.reverse();
        Ok(chunks)
    }

    /// A paragraph's lines, none of which is wider than the width unless a word is.
    fn lines(&self, paragraph: &str) -> Result<Vec<String>> {
        charge(paragraph.len().saturating_mul(2))?;
        let blank = |chunk: &&str| chunk.chars().all(is_space);
        let mut chunks = self.chunks(paragraph)?;
        let mut lines: Vec<String> = Vec::new();
        while !chunks.is_empty() {
            charge(ELEMENT)?;
            let mut line: Vec<&str> = Vec::new();
            let mut length = 0;
            if !lines.is_empty() {
                chunks.pop_if(|chunk| blank(&&**chunk));
            }
            while let Some(chunk) = chunks.last() {
                let more = chunk.chars().count();
                if length + more > self.width {
                    break;
                }
                length += more;
                line.extend(chunks.pop());
            }
            if chunks
                .last()
                .is_some_and(|chunk| chunk.chars().count() > self.width)
            {
                self.break_long(&mut chunks, &mut line, self.width - length);
            }
            line.pop_if(|chunk| blank(&&**chunk));
            if !line.is_empty() {
                lines.push(line.concat());
            }
        }
        Ok(lines)
    }

    /// Takes what fits of a word that is wider than a line.
    fn break_long<'t>(&self, chunks: &mut Vec<&'t str>, line: &mut Vec<&'t str>, room: usize) {
        let Some(chunk) = chunks.pop() else { return };
        if !self.break_long {
            match line.is_empty() {
                true => line.push(chunk),
                false => chunks.push(chunk),
            }
            return;
        }
        let at = |index: usize| {
            chunk
                .char_indices()
                .nth(index)
                .map_or(chunk.len(), |(at, _)| at)
        };
        let mut end = at(room);
        if self.hyphens {
            let hyphen = chunk[..end].rfind('-');
            if let Some(hyphen) = hyphen.filter(|hyphen| chunk[..*hyphen].contains(|c| c != '-')) {
                end = hyphen + 1;
            }
        }
        line.push(&chunk[..end]);
        if end < chunk.len() {
            chunks.push(&chunk[end..]);
        }
    }
}
