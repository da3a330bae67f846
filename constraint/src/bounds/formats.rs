//! Formats of texts, and expressions of our own for those that llguidance reads more widely than
//! their standards do.

use serde_json::{Map, Value, json};

/// A format that is obeyed, and its expression where llguidance's own has words that are no
/// instances.
type Format = (&'static str, Option<&'static str>);

/// Formats of texts that are obeyed. An expression may have fewer words than the standard, never
/// more. Each is one that a client could send, since a schema is checked again inside a grammar.
const FORMATS: [Format; 10] = [
    ("date-time", Some(DATE_TIME)),
    ("time", Some(TIME)),
    ("date", Some(DATE)),
    ("duration", None),
    ("email", Some(EMAIL)),
    ("hostname", Some(HOSTNAME)),
    ("ipv4", None),
    ("ipv6", None),
    ("uuid", None),
    ("uri", None),
];

/// Days of the Gregorian calendar, without anchors. February has 29 days in every fourth year, of
/// whole centuries in every fourth one.
macro_rules! date {
    () => {
        concat!(
            "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
            "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
            "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
            "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
        )
    };
}

/// Times of a day with their offset, without anchors. RFC 3339 allows a second 60 at 23:59 UTC
/// alone, in whatever minute that is at the offset; it is never written.
macro_rules! time {
    () => {
        concat!(
            r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?",
            "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
        )
    };
}

/// Labels of host names with dots between, without anchors. RFC 1034 allows 63 characters of a
/// label; the numbers are the characters less two of the first labels and of the last one.
macro_rules! labels {
    ($first:literal, $more:literal, $last:literal) => {
        concat!(
            label!($first),
            r"(?:\.",
            label!($first),
            "){0,",
            $more,
            r"}(?:\.",
            label!($last),
            ")?"
        )
    };
}

macro_rules! label {
    ($inner:literal) => {
        concat!("[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,", $inner, "}[a-zA-Z0-9])?")
    };
}

/// An RFC 5321 atom's characters.
macro_rules! atom {
    () => {
        r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
    };
}

/// RFC 5321's numbers of an address.
macro_rules! byte {
    () => {
        "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    };
}

const DATE: &str = concat!("^", date!(), "$");
const TIME: &str = concat!("^", time!(), "$");
const DATE_TIME: &str = concat!("^", date!(), "[tT]", time!(), "$");

/// Host names of at most 253 characters: up to 4 labels of up to 63, the last of 4 of up to 61, or
/// up to 8 labels of up to 30.
const HOSTNAME: &str = concat!(
    "^(?:",
    labels!("61", "2", "59"),
    "|",
    labels!("28", "6", "28"),
    ")$"
);

/// Mailboxes of at most 254 characters, of which 64 stand before the sign: without dots, or 32 with
/// any number of single dots between them. A host name behind it has up to 189 characters.
const EMAIL: &str = concat!(
    "^(?:",
    atom!(),
    "{1,64}|",
    atom!(),
    r"(?:\.?",
    atom!(),
    "){0,31})@(?:",
    labels!("61", "1", "59"),
    "|",
    labels!("20", "6", "20"),
    r"|\[",
    byte!(),
    r"(?:\.",
    byte!(),
    r"){3}\])$"
);

/// Returns true for a format that is obeyed.
pub(super) fn is_known(format: &str) -> bool {
    FORMATS.iter().any(|(name, _)| *name == format)
}

/// Returns the names of formats that are obeyed, for an error.
pub(super) fn names() -> String {
    FORMATS.map(|(name, _)| name).join(", ")
}

/// Returns true if [`write_out`] changes a schema with this format.
pub(super) fn is_own(format: &str) -> bool {
    own(format).is_some()
}

fn own(format: &str) -> Option<&'static str> {
    let found = FORMATS.iter().find(|(name, _)| *name == format);
    found.and_then(|(_, expression)| *expression)
}

/// Puts the expression of a schema's format in the place of the format. Keywords keep their order.
pub(super) fn write_out(fields: &mut Map<String, Value>) {
    let format = fields.get("format").and_then(Value::as_str);
    let Some(expression) = format.and_then(own) else {
        return;
    };
    if !fields.contains_key("pattern") {
        let old = std::mem::take(fields);
        fields.extend(old.into_iter().map(|(keyword, value)| match &*keyword {
            "format" => ("pattern".to_owned(), expression.into()),
            _ => (keyword, value),
        }));
        return;
    }
    // A schema has one pattern, so a second one is another schema's.
    let mut other = json!({"pattern": expression});
    if let Some(kinds) = fields.get("type") {
        other["type"] = kinds.clone();
    }
    fields.shift_remove("format");
    match fields.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(other),
        _ => {
            fields.insert("allOf".to_owned(), json!([other]));
        }
    }
}
