//! Arguments as raw values between tags: texts as they are, everything else as JSON.

use serde_json::{Map, Value};

use super::GrammarError;
use super::lark::Lark;
use super::schema::{Properties, Unwritable, plain_name, properties};
use super::values::{Values, Walk};
use crate::lark::{literal, one_of, regex_of};
use crate::tools::schema::Kinds;

/// The way in which a format writes an argument.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct RawStyle {
    /// Returns the expression of all that stands before a value. It gets the key's.
    pub head: fn(&Lark<'_>, &str) -> String,
    /// Mark behind a value.
    pub close: usize,
    /// Expression behind that mark.
    pub behind: &'static str,
    /// Marks that no value contains.
    pub without: &'static [usize],
    /// Text between a value and the tags around it.
    pub around: &'static str,
    /// True if the parser takes a line end at either side of a value for a part of the tags.
    pub trims: bool,
    /// Sign by which the parser knows texts from other values; `None` = it looks at the value.
    pub told: Option<Told>,
}

/// Sign that stands before a value, and says what it is.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Told {
    /// Returns the expressions before a text and before JSON.
    pub before: fn(&Lark<'_>) -> [String; 2],
    /// True if the mark behind a text stands behind JSON too.
    pub closes_json: bool,
}

/// Returns the expression of a tool's arguments.
///
/// # Errors
/// [`GrammarError::Arguments`] for a strict tool.
pub(in super::super) fn keys(
    lark: &mut Lark<'_>,
    tool: usize,
    style: &RawStyle,
) -> Result<String, GrammarError> {
    let callable = lark.tools[tool];
    let empty = Map::new();
    let known = callable
        .known
        .or(callable.schema)
        .and_then(Value::as_object);
    let loose = |lark: &mut Lark<'_>| loose(lark, known.unwrap_or(&empty), style);
    let arguments = match callable.schema.and_then(Value::as_object) {
        None => loose(lark),
        Some(schema) => match listed(lark, schema, style) {
            Err(_) if !callable.strict => loose(lark),
            written => written,
        },
    };
    arguments.map_err(|error| error.of(tool))
}

impl Unwritable {
    /// Returns the error of a tool's arguments.
    pub fn of(self, tool: usize) -> GrammarError {
        GrammarError::Arguments {
            tool,
            keyword: self.keyword,
            problem: self.problem,
        }
    }
}

fn listed(
    lark: &mut Lark<'_>,
    schema: &Map<String, Value>,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    let properties = match properties(schema)? {
        Properties::Listed(properties) => properties,
        Properties::Any(values) => return any(lark, values, schema, style),
    };
    let mut all = String::new();
    for property in properties {
        plain_name(property.name)?;
        let key = literal(property.name);
        let one = argument(lark, &key, property.schema, schema, style)?;
        let maybe = if property.required { "" } else { "?" };
        all.push_str(&format!("({one}){maybe} "));
    }
    Ok(all)
}

/// Returns the expression of arguments with any keys.
fn any(
    lark: &mut Lark<'_>,
    values: &Value,
    root: &Map<String, Value>,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    let key = lark.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}/");
    let one = argument(lark, &key, values, root, style)?;
    let rule = lark.rule(&one);
    Ok(format!("{rule}* "))
}

/// Returns the expression of any arguments. Those that the parser takes for texts are free texts.
fn loose(
    lark: &mut Lark<'_>,
    schema: &Map<String, Value>,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    let kinds = Kinds::listed(schema).into_iter();
    let rest = Kinds::of_rest(schema);
    let own = |(name, kinds): &(&str, Kinds)| {
        kinds.has_json() != rest.has_json() && plain_name(name).is_ok()
    };
    let own: Vec<_> = kinds.filter(own).collect();
    let mut key = "/[A-Za-z_][A-Za-z0-9_]{0,63}/".to_owned();
    if !own.is_empty() {
        let names: Vec<_> = own.iter().map(|(name, _)| regex_of(name)).collect();
        key.push_str(&format!(" & ~/({})/", names.join("|")));
    }
    let key = lark.terminal(&key);
    let mut ways = Vec::new();
    for (key, kinds) in std::iter::once((key, rest))
        .chain(own.into_iter().map(|(name, kinds)| (literal(name), kinds)))
    {
        if !lark.is_full() {
            let values = (Values::loose(kinds), kinds);
            let value = written(lark, values, &Map::new(), style)?;
            ways.push(behind_key(lark, &key, &value, style));
        }
    }
    let rule = lark.rule(&ways.join(" | "));
    Ok(format!("{rule}* "))
}

fn argument(
    lark: &mut Lark<'_>,
    key: &str,
    schema: &Value,
    root: &Map<String, Value>,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    if lark.is_full() {
        return Ok(String::new());
    }
    let value = value(lark, schema, root, style)?;
    Ok(behind_key(lark, key, &value, style))
}

/// Returns the expression of the instances of a schema inside another, `root`, and of what ends
/// them.
///
/// # Errors
/// [`Unwritable`] for what the style can't express.
pub(in super::super) fn value(
    lark: &mut Lark<'_>,
    schema: &Value,
    root: &Map<String, Value>,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    if lark.is_full() {
        return Ok(String::new());
    }
    let mut values = Values::default();
    values.add(schema, root, &mut Walk::default())?;
    if values.is_empty() {
        return Err(Unwritable::keyword("$ref"));
    }
    written(lark, (values, Kinds::of(schema, root)), root, style)
}

/// Returns the expression of an argument, from what stands before its value on.
fn behind_key(lark: &Lark<'_>, key: &str, value: &str, style: &RawStyle) -> String {
    let head = (style.head)(lark, key);
    format!("{head} {}{value} {}", around(style), style.behind)
}

/// Returns the expression of one of these values and of what ends it.
fn written(
    lark: &mut Lark<'_>,
    (values, kinds): (Values, Kinds),
    root: &Map<String, Value>,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    let kinds = style.told.map_or(kinds, |_| Kinds::TEXT);
    let [text_sign, json_sign] = match style.told {
        Some(told) => (told.before)(lark),
        None => Default::default(),
    };
    let mut ways = Vec::new();
    if let Some(lengths) = values.texts {
        let text = text(lark, lengths, kinds, style);
        ways.push(format!("{text_sign} {text}"));
    }
    for text in &values.literals {
        let text = enumerated(lark, text, kinds, style)?;
        ways.push(format!("{text_sign} {text}"));
    }
    let close = match style.told {
        Some(told) if !told.closes_json => String::new(),
        _ => format!("{}{}", around(style), lark.mark(style.close)),
    };
    for schema in &values.json {
        let json = lark.part(schema, root)?;
        ways.push(format!("{json_sign} {json} {close}"));
    }
    Ok(lark.rule(&ways.join(" | ")))
}

/// Returns the expression of what stands between a value and its tags.
fn around(style: &RawStyle) -> String {
    match style.around {
        "" => String::new(),
        around => format!("{} ", literal(around)),
    }
}

/// Returns the expression of a free text and its closing tag. The two are one terminal where they
/// can be: terminals are as long as they can be, so a text would take in the begin of its tag.
fn text(
    lark: &mut Lark<'_>,
    (least, most): (u64, Option<u64>),
    kinds: Kinds,
    style: &RawStyle,
) -> String {
    let most = most.map_or(String::new(), |most| most.to_string());
    let without = one_of(style.without.iter().map(|at| lark.text(*at)));
    let mut parts = vec![
        format!("/(?s:.){{{},{most}}}/", least.max(1)),
        format!("~/(?s:.*){without}(?s:.*)/"),
    ];
    // The parser takes what looks like another value for that.
    if kinds.has_json() {
        parts.push("/[A-Za-z](?s:.*)/".to_owned());
        parts.push(r"~/(true|false|null|True|False|None)\s*/".to_owned());
    } else if kinds.has_null() {
        parts.push(r"~/\s*(null|None)\s*/".to_owned());
    }
    if style.trims && style.around.is_empty() {
        parts.push("/[^\\n]|[^\\n](?s:.*)[^\\n]/".to_owned());
    }
    let text = lark.terminal(&parts.join(" & "));
    let maybe = if least == 0 && !kinds.has_json() {
        "?"
    } else {
        ""
    };
    let ended = format!("{text}{maybe} {}", around(style));
    let close = lark.mark(style.close);
    match (lark.is_token(style.close), style.around) {
        (true, "") => format!("{ended} {close}"),
        (true, _) => format!("{} {close}", lark.terminal(&ended)),
        (false, _) => lark.terminal(&format!("{ended} {close}")),
    }
}

/// Returns the expression of an enumerated text and its closing tag.
fn enumerated(
    lark: &mut Lark<'_>,
    text: &str,
    kinds: Kinds,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    let has_mark = style.without.iter().any(|at| text.contains(lark.text(*at)));
    let is_trimmed =
        style.trims && style.around.is_empty() && (text.starts_with('\n') || text.ends_with('\n'));
    // The parser looks for the end of a string of JSON before it looks for a tag.
    let is_open = kinds.has_json() && text.trim_start().starts_with(['"', '[', '{']);
    let quoted = Value::from(text).to_string();
    let is_text = (kinds.is_string() || kinds.json(text) == quoted) && !is_open;
    if has_mark || is_trimmed || !is_text {
        return Err(Unwritable {
            keyword: Some("enum".to_owned()),
            ..Unwritable::other(format!(
                "the text {text:?} can't be told from other values in this model's format of \
                 calls; leave it out"
            ))
        });
    }
    let closed = format!(
        "{} {}{}",
        literal(text),
        around(style),
        lark.mark(style.close)
    );
    Ok(match lark.is_token(style.close) {
        true => closed,
        false => lark.terminal(&closed),
    })
}
