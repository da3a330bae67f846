//! Rewrites syntax of Jinja2 (with transformers' extensions) that minijinja (3.0.5) refuses or
//! reads differently, so that both read a template alike.
//!
//! * `{% generation %}…{% endgeneration %}` only marks spans for training. It becomes `{% with %}…{% endwith %}`,
//!   which like it opens a scope and prints its body, and keeps the whitespace control of its tags.
//! * All line ends become `\n`.
//! * A plus sign without effect, `+x`, becomes `- -x`.
//! * A tuple without parentheses gets some where it is printed, iterated or used as a condition.
//! * String literals are written with escapes that the engine reads as Python does.

mod literals;

use minijinja::{Error, ErrorKind};

/// Rewrites a template. Text, comments and raw blocks stay as they are. A template that is not
/// well formed is left for the engine to refuse.
///
/// # Errors
/// Fails for syntax that Jinja2 refuses and the engine would read as something else.
pub(super) fn rewrite(source: &str) -> Result<String, Error> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source.as_str();
    let mut open: Vec<Open> = Vec::new();
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let (kind, length) = match tag.as_bytes().get(1) {
            Some(b'#') => (
                Tag::Comment,
                tag.find("#}").map_or(tag.len(), |end| end + 2),
            ),
            Some(b'%') => (Tag::Block, expression_end(tag, "%}")),
            Some(b'{') => (Tag::Print, expression_end(tag, "}}")),
            _ => (Tag::Comment, 1),
        };
        let (tag, after) = tag.split_at(length);
        rest = after;
        let line = || 1 + source[..source.len() - after.len()].matches('\n').count();
        match kind {
            Tag::Comment => out.push_str(tag),
            Tag::Print => out.push_str(&rewrite_tag(tag, "").map_err(|e| refused(&e, line()))?),
            Tag::Block => {
                let word = block_word(tag);
                if word == "raw" {
                    let end = raw_end(rest);
                    out.push_str(&raw_tag(tag).map_err(|e| refused(&e, line()))?);
                    out.push_str(&rest[..end]);
                    rest = &rest[end..];
                } else {
                    follow(&mut open, word).map_err(|e| refused(&e, line()))?;
                    let tag = rewrite_tag(&rename(tag, word), word);
                    out.push_str(&tag.map_err(|e| refused(&e, line()))?);
                }
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn refused(message: &str, line: usize) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{message} (line {line})"))
}

enum Tag {
    Comment,
    Print,
    Block,
}

/// Blocks that may contain a `break`.
#[derive(PartialEq, Eq)]
enum Open {
    For,
    Generation,
}

/// Keeps track of open loops and spans for training. A `break` cannot leave a span.
fn follow(open: &mut Vec<Open>, word: &str) -> Result<(), String> {
    match word {
        "for" => open.push(Open::For),
        "generation" => open.push(Open::Generation),
        "endfor" | "endgeneration" => {
            open.pop();
        }
        "break" | "continue" if open.last() == Some(&Open::Generation) => {
            return Err(format!("'{word}' cannot leave a generation block"));
        }
        _ => {}
    }
    Ok(())
}

/// Returns the length of the tag that `tag` starts with, its closing delimiter included.
/// Delimiters inside strings and inside open brackets do not count.
fn expression_end(tag: &str, close: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 2;
    while at < tag.len() {
        let rest = &tag[at..];
        if depth == 0 && rest.starts_with(close) {
            return at + close.len();
        }
        match tag.as_bytes()[at] {
            quote @ (b'"' | b'\'') => {
                at += literals::length(rest, quote);
                continue;
            }
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        while !tag.is_char_boundary(at) {
            at += 1;
        }
    }
    tag.len()
}

/// Returns the keyword of a `{% … %}` tag.
fn block_word(tag: &str) -> &str {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    &inner[..name_length(inner)]
}

/// Renames `generation` and `endgeneration` in a tag.
fn rename(tag: &str, word: &str) -> String {
    match word {
        "generation" => tag.replacen("generation", "with", 1),
        "endgeneration" => tag.replacen("endgeneration", "endwith", 1),
        _ => tag.to_owned(),
    }
}

/// Rewrites the start of a raw block. Jinja2 keeps the line end after the tag, and has no `+`
/// there.
fn raw_tag(tag: &str) -> Result<String, String> {
    match tag.strip_suffix("%}") {
        Some(start) if start.ends_with('+') => Err("there is no tag 'raw +%}'".to_owned()),
        Some(start) if !start.ends_with('-') => Ok(format!("{} +%}}", start.trim_end())),
        _ => Ok(tag.to_owned()),
    }
}

/// Returns the end of a raw block's body and end tag.
fn raw_end(body: &str) -> usize {
    let mut from = 0;
    while let Some(at) = body[from..].find("{%") {
        let start = from + at;
        let length = expression_end(&body[start..], "%}");
        if block_word(&body[start..start + length]) == "endraw" {
            return start + length;
        }
        from = start + 2;
    }
    body.len()
}

fn name_length(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len())
}

/// Words that are followed by an operand.
const BEFORE_OPERAND: &[&str] = &["and", "elif", "else", "if", "in", "not", "or"];

/// Rewrites one tag, token by token. `word` is its keyword, empty for a tag that prints.
fn rewrite_tag(tag: &str, word: &str) -> Result<String, String> {
    let close = if word.is_empty() { "}}" } else { "%}" };
    let marker = 2 + usize::from(tag[2..].starts_with(['-', '+']));
    let Some(inner) = tag[marker.min(tag.len())..].strip_suffix(close) else {
        return Ok(tag.to_owned());
    };
    let (inner, end) = match inner.strip_suffix(['-', '+']) {
        Some(_) if word.is_empty() && inner.ends_with('+') => {
            return Err("an operand is missing behind '+'".to_owned());
        }
        Some(shorter) => (shorter, &inner[shorter.len()..]),
        None => (inner, ""),
    };
    let mut state = State {
        out: String::with_capacity(inner.len() + 8),
        before: Vec::new(),
        tuple: match word {
            "" => Some(0),
            _ => None,
        },
        depth: 0,
        commas: false,
        word,
    };
    let mut rest = inner;
    while let Some(c) = rest.chars().next() {
        let length = state.token(rest, c)?;
        rest = &rest[length..];
    }
    let out = state.finish();
    Ok(format!("{}{out}{end}{close}", &tag[..marker]))
}

/// State of rewriting a tag.
struct State<'t> {
    out: String,
    /// The tokens so far, without blanks. They decide how the next token is read.
    before: Vec<&'t str>,
    /// Place where a tuple without parentheses would begin.
    tuple: Option<usize>,
    depth: usize,
    commas: bool,
    word: &'t str,
}

impl<'t> State<'t> {
    /// Takes the token that `rest` starts with, and returns its length.
    fn token(&mut self, rest: &'t str, c: char) -> Result<usize, String> {
        let length = match c {
            c if c.is_whitespace() => {
                self.out.push(c);
                return Ok(c.len_utf8());
            }
            '"' | '\'' => {
                let length = literals::length(rest, c as u8);
                self.out.push_str(&literals::respelled(&rest[..length])?);
                length
            }
            '+' if self.operand_is_next() && !self.follows_test() => {
                self.out.push_str("- -");
                1
            }
            c if c.is_ascii_digit() => {
                let after_dot = self.before.last() == Some(&".");
                let length = literals::number_length(rest, after_dot)?;
                self.out.push_str(&rest[..length]);
                length
            }
            c if c.is_alphabetic() || c == '_' => {
                let length = name_length(rest);
                self.name(&rest[..length])?;
                length
            }
            c => {
                self.sign(c)?;
                c.len_utf8()
            }
        };
        self.before.push(&rest[..length]);
        Ok(length)
    }

    fn operand_is_next(&self) -> bool {
        match self.before.last() {
            None => true,
            Some(word) if BEFORE_OPERAND.contains(word) => true,
            Some(sign) => {
                let c = sign.chars().next().unwrap_or(' ');
                !(c.is_alphanumeric() || "_'\")]}".contains(c))
            }
        }
    }

    fn name(&mut self, name: &str) -> Result<(), String> {
        if name == "is" && self.follows_test() {
            return Err("tests cannot be chained: one 'is' follows another's test".to_owned());
        }
        if name == "in" && self.word == "for" && self.depth == 0 && self.before.last() == Some(&",")
        {
            return Err("a comma ends the names of a loop".to_owned());
        }
        let ends = self.depth == 0 && matches!(name, "if" | "recursive");
        if ends && self.word == "for" && self.tuple.is_some() {
            self.close_tuple();
        }
        self.out.push_str(name);
        if self.depth == 0 && self.tuple.is_none() && !self.commas {
            let starts = match self.word {
                "for" => name == "in",
                "if" | "elif" => name == self.word && self.before.is_empty(),
                _ => false,
            };
            if starts {
                self.tuple = Some(self.out.len());
            }
        }
        Ok(())
    }

    /// Returns true if the last tokens are `is`, perhaps `not`, and a test's name.
    fn follows_test(&self) -> bool {
        match self.before.as_slice() {
            [.., "is", "not", name] | [.., "is", name] => {
                *name != "not" && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            }
            _ => false,
        }
    }

    fn sign(&mut self, c: char) -> Result<(), String> {
        if c == ')' && self.word == "macro" && self.depth == 1 && self.before.last() == Some(&",") {
            return Err("a comma ends the parameters of a macro".to_owned());
        }
        // After a test's name, a sign does not begin an argument but continues the expression.
        if matches!(c, '-' | '+') && self.follows_test() {
            let end = self.out.trim_end().len();
            self.out.insert_str(end, "()");
        }
        match c {
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
            ',' if self.depth == 0 && self.tuple.is_some() => self.commas = true,
            _ => {}
        }
        self.out.push(c);
        Ok(())
    }

    /// Puts parentheses around a tuple that has none.
    fn close_tuple(&mut self) {
        if let Some(start) = self.tuple.take()
            && self.commas
        {
            let blanks = self.out[start..].len() - self.out[start..].trim_start().len();
            self.out.insert(start + blanks, '(');
            let end = self.out.trim_end().len();
            self.out.insert(end, ')');
        }
        self.commas = true;
    }

    fn finish(mut self) -> String {
        self.close_tuple();
        self.out
    }
}
