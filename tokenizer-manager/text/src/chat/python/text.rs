//! Characters, lines and words as Python tells them apart.

use std::sync::LazyLock;

use onig::Regex;

/// Whether Python strips and splits at a character.
pub(in crate::chat) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// The words of a text (`split()`).
pub(in crate::chat) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// `splitlines(keep_ends)`.
pub(in crate::chat) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let breaks = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}'
        ) || matches!(c, '\u{2028}' | '\u{2029}');
        if !breaks {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(&text[start..if keep_ends { end } else { at }]);
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

/// Without characters of `set`, or without blanks, at the left, the right or both.
pub(in crate::chat) fn strip<'a>(
    text: &'a str,
    set: Option<&str>,
    left: bool,
    right: bool,
) -> &'a str {
    let strips = |c: char| set.map_or(is_space(c), |set| set.contains(c));
    let text = if left {
        text.trim_start_matches(strips)
    } else {
        text
    };
    if right {
        text.trim_end_matches(strips)
    } else {
        text
    }
}

fn class(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

fn matches(class: Option<&Regex>, c: char) -> bool {
    class.is_some_and(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}

/// Whether a character is a letter (`isalpha`).
pub(in crate::chat) fn is_letter(c: char) -> bool {
    static LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{L}\z"));
    c.is_ascii_alphabetic() || (!c.is_ascii() && matches(LETTER.as_ref(), c))
}

/// Whether a character is a decimal digit (`isdecimal`).
pub(in crate::chat) fn is_decimal(c: char) -> bool {
    static DECIMAL: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{Nd}\z"));
    c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric() && matches(DECIMAL.as_ref(), c))
}

/// Whether a character is a digit (`isdigit`): superscripts and encircled ones are too.
pub(in crate::chat) fn is_digit(c: char) -> bool {
    let other = matches!(u32::from(c),
        0xb2 | 0xb3 | 0xb9 | 0x2070 | 0x2074..=0x2079 | 0x2080..=0x2089 | 0x1369..=0x1371
        | 0x19da | 0x2460..=0x2468 | 0x2474..=0x247c | 0x2488..=0x2490 | 0x24ea
        | 0x24f5..=0x24fd | 0x24ff | 0x2776..=0x277e | 0x2780..=0x2788 | 0x278a..=0x2792
        | 0x10a40..=0x10a43 | 0x10e60..=0x10e68 | 0x11052..=0x1105a | 0x1f100..=0x1f10a);
    is_decimal(c) || other
}

/// Whether `repr` leaves a character as it is.
pub(in crate::chat) fn is_printable(c: char) -> bool {
    static OTHER: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A[\p{C}\p{Z}]\z"));
    match c {
        ' '..='~' => true,
        c if c.is_ascii() => false,
        c => c.is_alphanumeric() || !matches(OTHER.as_ref(), c),
    }
}

/// Whether a character is a letter of either case.
pub(in crate::chat) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// The digraphs that have a form of their own at the start of a word.
fn is_title(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// `upper()` of a character, at the start of a word.
pub(in crate::chat) fn push_title(out: &mut String, c: char) {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => out.push('ǅ'),
        'Ǉ' | 'ǈ' | 'ǉ' => out.push('ǈ'),
        'Ǌ' | 'ǋ' | 'ǌ' => out.push('ǋ'),
        'Ǳ' | 'ǲ' | 'ǳ' => out.push('ǲ'),
        'ŉ' => out.extend(c.to_uppercase()),
        c => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

/// `capitalize()`.
pub(in crate::chat) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = chars.next() {
        push_title(&mut out, first);
    }
    out + &chars.as_str().to_lowercase()
}

/// `title()`: every letter that follows none starts a word.
pub(in crate::chat) fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        match after_letter {
            true => out.extend(c.to_lowercase()),
            false => push_title(&mut out, c),
        }
        after_letter = is_cased(c);
    }
    out
}

/// `swapcase()`.
pub(in crate::chat) fn swapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_uppercase() {
            true => out.extend(c.to_lowercase()),
            false if c.is_lowercase() => out.extend(c.to_uppercase()),
            false => out.push(c),
        }
    }
    out
}

/// Whether all letters are upper (`isupper`) or lower case (`islower`), and there is one.
pub(in crate::chat) fn is_all(text: &str, upper: bool) -> bool {
    let wrong = |c: char| match upper {
        true => c.is_lowercase() || is_title(c),
        false => c.is_uppercase() || is_title(c),
    };
    !text.chars().any(wrong) && text.chars().any(is_cased)
}

/// `istitle()`.
pub(in crate::chat) fn is_titled(text: &str) -> bool {
    let mut after_letter = false;
    let mut any = false;
    for c in text.chars() {
        let starts = c.is_uppercase() || is_title(c);
        if (starts && after_letter) || (c.is_lowercase() && !after_letter) {
            return false;
        }
        after_letter = is_cased(c);
        any |= after_letter;
    }
    any
}
