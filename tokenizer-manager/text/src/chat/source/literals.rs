//! String and number literals.

/// Returns the length of the string literal that `text` starts with, quotes included.
pub(super) fn length(text: &str, quote: u8) -> usize {
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

/// Resolves a literal's escapes as Python does, and writes it again with escapes that the engine
/// reads in the same way.
pub(super) fn respelled(literal: &str) -> Result<String, String> {
    let quote = literal.chars().next().unwrap_or('\'');
    let inner = literal
        .strip_prefix(quote)
        .and_then(|inner| inner.strip_suffix(quote));
    let Some(inner) = inner.filter(|inner| inner.contains('\\')) else {
        return Ok(literal.to_owned());
    };
    let mut out = String::with_capacity(literal.len());
    out.push(quote);
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let (resolved, length) = escape(&rest[at + 1..])?;
        for c in resolved.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                c if c == quote || c == '\\' => out.extend(['\\', c]),
                c => out.push(c),
            }
        }
        rest = &rest[at + 1 + length..];
    }
    out.push_str(rest);
    out.push(quote);
    Ok(out)
}

/// Returns the meaning of the escape after a backslash, and its length.
fn escape(text: &str) -> Result<(String, usize), String> {
    let Some(c) = text.chars().next() else {
        return Err("a string ends in a backslash".to_owned());
    };
    let simple = match c {
        '\n' => Some(""),
        '\\' => Some("\\"),
        '\'' => Some("'"),
        '"' => Some("\""),
        'a' => Some("\u{7}"),
        'b' => Some("\u{8}"),
        'f' => Some("\u{c}"),
        'n' => Some("\n"),
        'r' => Some("\r"),
        't' => Some("\t"),
        'v' => Some("\u{b}"),
        _ => None,
    };
    if let Some(resolved) = simple {
        return Ok((resolved.to_owned(), 1));
    }
    let (digits, radix, start) = match c {
        'x' => (2, 16, 1),
        'u' => (4, 16, 1),
        'U' => (8, 16, 1),
        '0'..='7' => {
            let octal = text
                .bytes()
                .take(3)
                .take_while(|byte| (b'0'..=b'7').contains(byte));
            (octal.count(), 8, 0)
        }
        'N' => return Err("the escape \\N{…} is not supported; write the character".to_owned()),
        // An unknown escape stays as it is, with its backslash.
        c => return Ok((format!("\\{c}"), c.len_utf8())),
    };
    let end = start + digits;
    let number = text.get(start..end);
    let number = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let code = number.and_then(|number| u32::from_str_radix(number, radix).ok());
    let resolved = code.and_then(char::from_u32);
    let resolved = resolved.ok_or_else(|| {
        let shown: String = text.chars().take(end).collect();
        format!("the escape \\{shown} is no character")
    })?;
    Ok((resolved.to_string(), end))
}

/// Returns the length of the number that `text` starts with. Fails if Jinja2 would read another
/// number.
pub(super) fn number_length(text: &str, after_dot: bool) -> Result<usize, String> {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        let run = bytes[from..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit() || **byte == b'_');
        from + run.count()
    };
    if let [b'0', b'x' | b'X' | b'b' | b'B' | b'o' | b'O', ..] = bytes {
        let rest = &bytes[2..];
        return Ok(2 + rest
            .iter()
            .take_while(|b| b.is_ascii_hexdigit() || **b == b'_')
            .count());
    }
    let mut end = digits(0);
    let mut is_float = false;
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    if !after_dot && bytes.get(end) == Some(&b'.') {
        if digit(end + 1) {
            end = digits(end + 1);
            is_float = true;
        } else if !text[end + 1..].starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return Err(format!("{:?} is no number", &text[..=end]));
        }
    }
    if !after_dot && matches!(bytes.get(end), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if digit(end + 1 + signed) {
            end = digits(end + 1 + signed);
            is_float = true;
        }
    }
    let number = &text[..end];
    let misplaced = number.ends_with('_') || number.contains("__") || number.contains("_.");
    let zeros = !is_float && number.starts_with('0') && !number.trim_matches(['0', '_']).is_empty();
    match misplaced || zeros {
        true => Err(format!("{number:?} is no number")),
        false => Ok(end),
    }
}
