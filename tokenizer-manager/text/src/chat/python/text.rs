//! Python's classes of characters, lines and words.

use std::sync::LazyLock;

use minijinja::Error;
use onig::Regex;

use super::super::meter::charge;

/// Returns true for characters at which Python strips and splits.
pub(in crate::chat) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Returns the lines of a text (`splitlines(keep_ends)`).
pub(in crate::chat) fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> + Clone {
    let breaks = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(breaks).unwrap_or(rest.len());
        let length = match &rest[end..] {
            after if after.starts_with("\r\n") => 2,
            after => after.chars().next().map_or(0, char::len_utf8),
        };
        let line = &rest[..if keep_ends { end + length } else { end }];
        rest = &rest[end + length..];
        Some(line)
    })
}

/// Strips the characters of `set`, or blanks if there is no set, on the left, the right
/// or both sides.
pub(in crate::chat) fn strip<'a>(
    text: &'a str,
    set: Option<&str>,
    left: bool,
    right: bool,
) -> Result<&'a str, Error> {
    charge(text.len())?;
    // Sorted for a binary search, since both texts may be long.
    let mut known: Vec<char> = Vec::new();
    if let Some(set) = set {
        charge(set.len().saturating_mul(size_of::<char>()))?;
        known.extend(set.chars());
        known.sort_unstable();
    }
    let strips = |c: char| match set {
        Some(_) => known.binary_search(&c).is_ok(),
        None => is_space(c),
    };
    let text = if left {
        text.trim_start_matches(strips)
    } else {
        text
    };
    Ok(if right {
        text.trim_end_matches(strips)
    } else {
        text
    })
}

fn class(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

fn matches(class: Option<&Regex>, c: char) -> bool {
    class.is_some_and(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}

/// Returns true for letters (`isalpha`).
pub(in crate::chat) fn is_letter(c: char) -> bool {
    static LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{L}\z"));
    c.is_ascii_alphabetic() || (!c.is_ascii() && matches(LETTER.as_ref(), c))
}

/// Returns the value of a decimal digit; `None` for other characters (`isdecimal`).
pub(in crate::chat) fn decimal(c: char) -> Option<u32> {
    /// All decimal digits. Each script has its ten digits together, from zero on.
    static DECIMALS: LazyLock<Vec<char>> = LazyLock::new(|| {
        let class = class(r"\A\p{Nd}\z");
        let numeric = (char::MIN..=char::MAX).filter(|c| c.is_numeric());
        numeric.filter(|c| matches(class.as_ref(), *c)).collect()
    });
    if c.is_ascii() {
        return c.to_digit(10);
    }
    let place = DECIMALS.binary_search(&c).ok()?;
    u32::try_from(place % 10).ok()
}

/// Returns true for decimal digits (`isdecimal`).
pub(in crate::chat) fn is_decimal(c: char) -> bool {
    decimal(c).is_some()
}

/// Returns true for digits (`isdigit`), which include superscript and encircled digits.
pub(in crate::chat) fn is_digit(c: char) -> bool {
    let other = matches!(u32::from(c),
        0xb2 | 0xb3 | 0xb9 | 0x2070 | 0x2074..=0x2079 | 0x2080..=0x2089 | 0x1369..=0x1371
        | 0x19da | 0x2460..=0x2468 | 0x2474..=0x247c | 0x2488..=0x2490 | 0x24ea
        | 0x24f5..=0x24fd | 0x24ff | 0x2776..=0x277e | 0x2780..=0x2788 | 0x278a..=0x2792
        | 0x10a40..=0x10a43 | 0x10e60..=0x10e68 | 0x11052..=0x1105a | 0x1f100..=0x1f10a);
    is_decimal(c) || other
}

/// Returns true for characters that `repr` does not escape.
pub(in crate::chat) fn is_printable(c: char) -> bool {
    static OTHER: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A[\p{C}\p{Z}]\z"));
    match c {
        ' '..='~' => true,
        c if c.is_ascii() => false,
        c => c.is_alphanumeric() || !matches(OTHER.as_ref(), c),
    }
}

/// Returns true for letters that have a case.
pub(in crate::chat) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// Returns true for the digraphs that have a form of their own at the start of a word.
fn is_title(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// Appends a character in the form for the start of a word.
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

/// Computes `capitalize()`.
pub(in crate::chat) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = chars.next() {
        push_title(&mut out, first);
    }
    out + &chars.as_str().to_lowercase()
}

/// Computes `title()`: every letter that does not follow a letter starts a word.
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

/// Computes `casefold()`.
pub(in crate::chat) fn case_folded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ı' => out.push(c),
            // Cherokee had only capital letters at first.
            '\u{13a0}'..='\u{13ff}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
            c => {
                let upper = c.to_lowercase().flat_map(char::to_uppercase);
                out.extend(upper.flat_map(char::to_lowercase));
            }
        }
    }
    out
}

/// Computes `swapcase()`.
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

/// Returns true if there is a letter, and all letters are upper case (`isupper`) or
/// lower case (`islower`).
pub(in crate::chat) fn is_all(text: &str, upper: bool) -> bool {
    let wrong = |c: char| match upper {
        true => c.is_lowercase() || is_title(c),
        false => c.is_uppercase() || is_title(c),
    };
    !text.chars().any(wrong) && text.chars().any(is_cased)
}

/// Computes `istitle()`.
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
