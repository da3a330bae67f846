//! Arguments as raw values between tags: texts as they are, everything else as JSON.

use serde_json::{Map, Value, json};

use super::GrammarError;
use super::lark::{Lark, literal, part_expression, regex_of};
use super::schema::{Properties, Unwritable, plain_name, properties};
use crate::tools::schema::Kinds;

/// Longest bound of a text's length.
const MOST_LENGTH: u64 = 4096;
/// Most schemas behind references and in unions of a value.
const MOST_SCHEMAS: usize = 256;

/// Keywords that change nothing about an instance.
const ANNOTATIONS: [&str; 9] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
];

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
}

/// Values of an argument.
#[derive(Debug, Default)]
struct Values {
    /// Lengths of texts, if there may be any: the least, and the most.
    texts: Option<(u64, Option<u64>)>,
    /// Texts that are enumerated.
    literals: Vec<String>,
    /// Schemas of all that is no text.
    json: Vec<Value>,
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
    let schema = callable.schema.and_then(Value::as_object).unwrap_or(&empty);
    match listed(lark, schema, style) {
        Ok(arguments) => Ok(arguments),
        Err(_) if !callable.strict => {
            any(lark, &Value::Bool(true), &empty, style).map_err(|error| error.of(tool))
        }
        Err(error) => Err(error.of(tool)),
    }
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

fn argument(
    lark: &mut Lark<'_>,
    key: &str,
    schema: &Value,
    root: &Map<String, Value>,
    style: &RawStyle,
) -> Result<String, Unwritable> {
    let mut values = Values::default();
    values.add(schema, root, &mut { MOST_SCHEMAS })?;
    let kinds = Kinds::of(schema, root);
    let mut ways = Vec::new();
    if let Some(lengths) = values.texts {
        ways.push(text(lark, lengths, kinds, style));
    }
    for text in &values.literals {
        ways.push(enumerated(lark, text, kinds, style)?);
    }
    let close = format!("{}{}", around(style), lark.mark(style.close));
    for schema in &values.json {
        ways.push(format!("{} {close}", part_expression(schema, root)));
    }
    let value = lark.rule(&ways.join(" | "));
    Ok(format!(
        "{} {}{value} {}",
        (style.head)(lark, key),
        around(style),
        style.behind
    ))
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
    let without: Vec<_> = style
        .without
        .iter()
        .map(|at| regex_of(lark.text(*at)))
        .collect();
    let mut parts = vec![
        format!("/(?s:.){{{},{most}}}/", least.max(1)),
        format!("~/(?s:.*)({})(?s:.*)/", without.join("|")),
    ];
    if !kinds.is_string() {
        // The parser takes what looks like another value for that.
        parts.push("/[A-Za-z](?s:.*)/".to_owned());
        parts.push(r"~/(true|false|null|True|False|None)\s*/".to_owned());
    }
    if style.trims && style.around.is_empty() {
        parts.push("/[^\\n]|[^\\n](?s:.*)[^\\n]/".to_owned());
    }
    let text = lark.terminal(&parts.join(" & "));
    let maybe = if least == 0 && kinds.is_string() {
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
    let quoted = Value::from(text).to_string();
    let is_text = kinds.is_string() || kinds.json(text) == quoted;
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

impl Values {
    /// Adds the instances of a schema.
    fn add(
        &mut self,
        schema: &Value,
        root: &Map<String, Value>,
        left: &mut usize,
    ) -> Result<(), Unwritable> {
        let Value::Object(fields) = schema else {
            return match schema {
                Value::Bool(true) => {
                    self.any();
                    Ok(())
                }
                _ => Err(Unwritable::other("a schema must be an object or 'true'")),
            };
        };
        let only = |keyword: &str| {
            let mut own = fields.keys().map(String::as_str);
            own.all(|key| key == keyword || ANNOTATIONS.contains(&key))
        };
        if *left == 0 {
            return Err(Unwritable::keyword("$ref"));
        }
        *left -= 1;
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            let target = super::super::schema::target(root, reference);
            return match target.filter(|_| only("$ref")) {
                Some(target) => self.add(target, root, left),
                None => Err(Unwritable::keyword("$ref")),
            };
        }
        if let Some(values) = enumeration(fields) {
            values.into_iter().for_each(|value| self.value(value));
            return Ok(());
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = fields.get(union) {
                if !only(union) {
                    return Err(Unwritable::keyword(union));
                }
                return branches
                    .iter()
                    .try_for_each(|branch| self.add(branch, root, left));
            }
        }
        self.typed(fields, only(""))
    }

    fn any(&mut self) {
        self.texts = Some((0, None));
        self.json
            .push(json!({"type": ["null", "boolean", "number", "object", "array"]}));
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.literals.push(text.clone()),
            other => self.json.push(json!({"const": other})),
        }
    }

    /// Adds the instances of a schema without a union. `bare` = it has nothing but annotations.
    fn typed(&mut self, fields: &Map<String, Value>, bare: bool) -> Result<(), Unwritable> {
        let types: Vec<&str> = match fields.get("type") {
            None if bare => {
                self.any();
                return Ok(());
            }
            None => return Err(Unwritable::other("give each property a 'type'")),
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(_) => return Err(Unwritable::keyword("type")),
        };
        let others: Vec<_> = types.iter().filter(|name| **name != "string").collect();
        if others.len() < types.len() {
            self.text(fields)?;
        }
        if !others.is_empty() {
            let mut fields = fields.clone();
            fields.insert("type".to_owned(), json!(others));
            for keyword in ["minLength", "maxLength", "pattern", "format"] {
                fields.remove(keyword);
            }
            self.json.push(Value::Object(fields));
        }
        Ok(())
    }

    fn text(&mut self, fields: &Map<String, Value>) -> Result<(), Unwritable> {
        for keyword in ["pattern", "format", "allOf", "not"] {
            if fields.contains_key(keyword) {
                return Err(Unwritable::keyword(keyword));
            }
        }
        let length = |keyword: &str| match fields.get(keyword) {
            None => Ok(None),
            Some(length) => match length.as_u64().filter(|length| *length <= MOST_LENGTH) {
                Some(length) => Ok(Some(length)),
                None => Err(Unwritable::keyword(keyword)),
            },
        };
        let lengths = (length("minLength")?.unwrap_or(0), length("maxLength")?);
        if self.texts.is_some_and(|texts| texts != lengths) {
            return Err(Unwritable::keyword("anyOf"));
        }
        if lengths.1.is_some_and(|most| most < lengths.0.max(1)) {
            return Err(Unwritable::keyword("maxLength"));
        }
        self.texts = Some(lengths);
        Ok(())
    }
}

/// Returns the values of `enum` or `const`.
fn enumeration(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (fields.get("enum"), fields.get("const")) {
        (Some(Value::Array(values)), _) => Some(values.iter().collect()),
        (_, Some(value)) => Some(vec![value]),
        _ => None,
    }
}
