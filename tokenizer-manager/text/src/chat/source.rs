//! Rewrites what Jinja2 (with transformers' extensions) accepts and minijinja does not into what
//! both mean.
//!
//! * `{% generation %}…{% endgeneration %}` only marks spans for training. It becomes `{% with %}…{% endwith %}`,
//!   which like it opens a scope and prints its body, and keeps the whitespace control of its tags.
//! * Line ends are `\n`, whatever the file has.
//! * `'…%s…' % x` becomes `'…%s…'|format(x)`; both bind to what follows in the same way.

/// The rewritten template. Text, comments and raw blocks stay as they are; a template that is not
/// well formed is left for the engine to complain about.
pub(super) fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source.as_str();
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
        match kind {
            Tag::Comment => out.push_str(tag),
            Tag::Print => out.push_str(&rewrite_percent(tag)),
            Tag::Block => {
                let word = block_word(tag);
                if word == "raw" {
                    let end = raw_end(rest);
                    out.push_str(tag);
                    out.push_str(&rest[..end]);
                    rest = &rest[end..];
                } else {
                    out.push_str(&rewrite_percent(&rename(tag, word)));
                }
            }
        }
    }
    out.push_str(rest);
    out
}

enum Tag {
    Comment,
    Print,
    Block,
}

/// Length of the tag that `tag` starts with, its closing delimiter included; delimiters inside
/// strings and inside open brackets do not count.
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
                at += string_length(rest, quote);
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

/// Length of the string literal that `text` starts with, quotes included.
fn string_length(text: &str, quote: u8) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            byte if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The keyword of a `{% … %}` tag.
fn block_word(tag: &str) -> &str {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let end = inner
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(inner.len());
    &inner[..end]
}

/// The tag with `generation` and `endgeneration` renamed.
fn rename(tag: &str, word: &str) -> String {
    match word {
        "generation" => tag.replacen("generation", "with", 1),
        "endgeneration" => tag.replacen("endgeneration", "endwith", 1),
        _ => tag.to_owned(),
    }
}

/// Where the body of a raw block and its end tag end.
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

/// Replaces `literal % operand` by `literal|format(operand)` within one tag.
fn rewrite_percent(tag: &str) -> String {
    let mut out = String::with_capacity(tag.len());
    let mut after_string = false;
    let mut at = 0;
    while at < tag.len() {
        let rest = &tag[at..];
        let Some(c) = rest.chars().next() else { break };
        let mut length = c.len_utf8();
        match c {
            '"' | '\'' => {
                length = string_length(rest, c as u8);
                after_string = true;
            }
            '%' if after_string && !rest.starts_with("%}") => {
                let operand = rest[1..].trim_start();
                let start = at + (rest.len() - operand.len());
                let end = start + operand_length(operand);
                out.truncate(out.trim_end().len());
                out.push_str("|format(");
                out.push_str(&rewrite_percent(arguments(&tag[start..end])));
                out.push(')');
                at = end;
                after_string = false;
                continue;
            }
            c if c.is_whitespace() => {}
            _ => after_string = false,
        }
        out.push_str(&rest[..length]);
        at += length;
    }
    out
}

/// A parenthesised operand without its parentheses: the elements of a tuple are the arguments.
fn arguments(operand: &str) -> &str {
    let operand = operand.trim();
    match operand.strip_prefix('(') {
        Some(inner) if bracket_length(operand) == operand.len() => {
            inner.strip_suffix(')').unwrap_or(inner)
        }
        _ => operand,
    }
}

/// Length of the unary expression `text` starts with: a sign, a primary, and its attributes,
/// subscripts, calls and filters (Jinja2's `parse_unary`).
fn operand_length(text: &str) -> usize {
    let mut at = text.len() - text.trim_start_matches(['-', '+']).trim_start().len();
    at += match text[at..].chars().next() {
        Some(quote @ ('"' | '\'')) => string_length(&text[at..], quote as u8),
        Some('(' | '[' | '{') => bracket_length(&text[at..]),
        _ => name_length(&text[at..]),
    };
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start();
        let space = rest.len() - trimmed.len();
        at += match trimmed.as_bytes().first() {
            Some(b'(' | b'[') => space + bracket_length(trimmed),
            Some(b'.' | b'|') => {
                let name = trimmed[1..].trim_start();
                space + (trimmed.len() - name.len()) + name_length(name)
            }
            _ => return at,
        };
    }
}

/// Length of the bracketed group `text` starts with.
fn bracket_length(text: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        match text.as_bytes()[at] {
            quote @ (b'"' | b'\'') => {
                at += string_length(&text[at..], quote);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth <= 1 => return at + 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

fn name_length(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len())
}
