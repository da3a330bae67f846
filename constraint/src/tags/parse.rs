//! Reading of structural tags. A key that is not known is an error.

use lockstep_text::XmlStyle;
use serde_json::Value;

use super::keys::Keys;
use super::rules::Result;
use super::tree::{Flags, Format, Node, Place, Tag, Triggered, shown};
use crate::ConstraintError;

/// Most formats.
const MOST_FORMATS: usize = 1000;
/// Deepest nesting of formats.
const MOST_NESTING: usize = 32;
/// Most texts of one list.
const MOST_TEXTS: usize = 256;
/// Most repetitions and characters by number.
const MOST_TIMES: u64 = 4096;

const TYPES: &str = "const_string, json_schema, qwen_xml_parameter, any_text, regex, grammar, \
                     sequence, or, optional, plus, star, repeat, tag, triggered_tags and \
                     tags_with_separator";

/// Reads a structural tag of either form.
///
/// # Errors
/// [`ConstraintError::Refused`], with the place.
pub(super) fn parse(text: &str) -> Result<Node> {
    let root: Value = serde_json::from_str(text)
        .map_err(|error| ConstraintError::refused(format!("it is no JSON: {error}")))?;
    let place = Place::default();
    let mut parser = Parser { formats: 0 };
    let mut keys = Keys::new(&root, &place)?;
    match keys.take("type") {
        None => {}
        Some((_, Value::String(kind))) if kind == "structural_tag" => {}
        Some((at, _)) => return Err(at.refuse("it must be \"structural_tag\"")),
    }
    let node = match keys.take("format") {
        Some((at, format)) => parser.node(format, at, 0)?,
        None => legacy(&mut parser, &mut keys)?,
    };
    keys.end("a structural tag has 'format', or 'structures' and 'triggers'")?;
    Ok(node)
}

/// Reads the older form.
fn legacy(parser: &mut Parser, keys: &mut Keys<'_>) -> Result<Node> {
    let Some((at, structures)) = keys.take("structures") else {
        let problem = "expected 'format', or 'structures' and 'triggers'";
        return Err(keys.place.refuse(problem));
    };
    let mut tags = Vec::new();
    for (at, structure) in list(structures, &at)? {
        parser.count(&at)?;
        let mut keys = Keys::new(structure, &at)?;
        let begin = keys.text("begin")?;
        let (place, schema) = keys.needed("schema")?;
        let schema = match schema {
            Value::String(text) => serde_json::from_str(text)
                .map_err(|error| place.refuse(format!("it is no JSON: {error}")))?,
            other => other.clone(),
        };
        let format = Format::Schema {
            schema: schema_of(schema, &place)?,
            at: place.clone(),
            style: None,
            blanks: None,
        };
        let ends = ends(&mut keys)?;
        keys.end("a structure has 'begin', 'schema' and 'end'")?;
        let content = Box::new(Node { place, format });
        tags.push((
            Tag {
                begin,
                content,
                ends,
            },
            at,
        ));
    }
    let flags = Flags {
        at_least_one: false,
        stop_after_first: false,
    };
    let triggered = triggered(keys, tags, (Vec::new(), flags))?;
    Ok(Node {
        place: keys.place.clone(),
        format: Format::Triggered(triggered),
    })
}

struct Parser {
    formats: usize,
}

impl Parser {
    fn count(&mut self, at: &Place) -> Result<()> {
        self.formats += 1;
        match self.formats > MOST_FORMATS {
            true => Err(at.refuse(format!("there are more than {MOST_FORMATS} formats"))),
            false => Ok(()),
        }
    }

    fn node(&mut self, value: &Value, place: Place, depth: usize) -> Result<Node> {
        self.count(&place)?;
        if depth > MOST_NESTING {
            let problem = format!("formats nest deeper than {MOST_NESTING}");
            return Err(place.refuse(problem));
        }
        let mut keys = Keys::new(value, &place)?;
        let (at, kind) = keys.needed("type")?;
        let Value::String(kind) = kind else {
            return Err(at.refuse(format!("expected one of {TYPES}")));
        };
        let format = match kind.as_str() {
            "const_string" => Format::Fixed(keys.text("value")?),
            "json_schema" => schema(&mut keys)?,
            "qwen_xml_parameter" => {
                let (at, schema) = schema_key(&mut keys)?;
                Format::Schema {
                    schema,
                    at,
                    style: Some(XmlStyle::Qwen),
                    blanks: None,
                }
            }
            "any_text" => any_text(&mut keys)?,
            "regex" => Format::Regex(keys.text("pattern")?),
            "grammar" => Format::Grammar(keys.text("grammar")?),
            "sequence" => Format::Sequence(self.elements(&mut keys, depth)?),
            "or" => Format::Or(self.elements(&mut keys, depth)?),
            "optional" => Format::Repeat(self.content(&mut keys, depth)?, 0, Some(1)),
            "plus" => Format::Repeat(self.content(&mut keys, depth)?, 1, None),
            "star" => Format::Repeat(self.content(&mut keys, depth)?, 0, None),
            "repeat" => {
                let (least, most) = times(&mut keys)?;
                Format::Repeat(self.content(&mut keys, depth)?, least, most)
            }
            "tag" => Format::Tag(self.tag(&mut keys, depth)?),
            "triggered_tags" => {
                let tags = self.tags(&mut keys, depth)?;
                let excludes = excludes(&mut keys)?;
                let flags = flags(&mut keys)?;
                Format::Triggered(triggered(&mut keys, tags, (excludes, flags))?)
            }
            "tags_with_separator" => {
                let tags = self.tags(&mut keys, depth)?;
                Format::Separated {
                    tags: tags.into_iter().map(|(tag, _)| tag).collect(),
                    separator: keys.text("separator")?,
                    flags: flags(&mut keys)?,
                }
            }
            other => {
                let other = shown(other);
                let problem = format!("the format '{other}' is not supported; use {TYPES}");
                return Err(at.refuse(problem));
            }
        };
        keys.end(&format!("a format '{kind}' has no such key"))?;
        Ok(Node { place, format })
    }

    fn content(&mut self, keys: &mut Keys<'_>, depth: usize) -> Result<Box<Node>> {
        let (at, content) = keys.needed("content")?;
        self.node(content, at, depth + 1).map(Box::new)
    }

    fn elements(&mut self, keys: &mut Keys<'_>, depth: usize) -> Result<Vec<Node>> {
        let (at, elements) = keys.needed("elements")?;
        let elements = list(elements, &at)?.into_iter();
        let node = |(at, element)| self.node(element, at, depth + 1);
        elements.map(node).collect()
    }

    fn tag(&mut self, keys: &mut Keys<'_>, depth: usize) -> Result<Tag> {
        Ok(Tag {
            begin: keys.text("begin")?,
            content: self.content(keys, depth)?,
            ends: ends(keys)?,
        })
    }

    /// Reads a list of tags, which need not say that they are some.
    fn tags(&mut self, keys: &mut Keys<'_>, depth: usize) -> Result<Vec<(Tag, Place)>> {
        let (at, tags) = keys.needed("tags")?;
        let mut all = Vec::new();
        for (at, value) in list(tags, &at)? {
            self.count(&at)?;
            let mut keys = Keys::new(value, &at)?;
            match keys.take("type") {
                None => {}
                Some((_, Value::String(kind))) if kind == "tag" => {}
                Some((at, _)) => return Err(at.refuse("expected a format of the type \"tag\"")),
            }
            let tag = self.tag(&mut keys, depth)?;
            keys.end("a tag has 'begin', 'content' and 'end'")?;
            all.push((tag, at));
        }
        Ok(all)
    }
}

fn schema(keys: &mut Keys<'_>) -> Result<Format> {
    const STYLES: &str = "it must be \"json\", \"qwen_xml\", \"minimax_xml\", \"deepseek_xml\" or \
                          \"glm_xml\"";
    let (at, schema) = schema_key(keys)?;
    let style = match keys.take("style") {
        None => None,
        Some((place, style)) => match style.as_str() {
            Some("json") => None,
            Some("qwen_xml") => Some(XmlStyle::Qwen),
            Some("minimax_xml") => Some(XmlStyle::Minimax),
            Some("deepseek_xml") => Some(XmlStyle::Deepseek),
            Some("glm_xml") => Some(XmlStyle::Glm),
            _ => return Err(place.refuse(STYLES)),
        },
    };
    if let Some((place, true)) = keys.flag("any_order")? {
        return Err(place.refuse(
            "'any_order' is not supported: properties come in the schema's order; leave it out",
        ));
    }
    Ok(Format::Schema {
        schema,
        at,
        style,
        blanks: keys.number("max_whitespace_cnt", MOST_TIMES)?,
    })
}

fn schema_key(keys: &mut Keys<'_>) -> Result<(Place, Value)> {
    let (at, schema) = keys.needed("json_schema")?;
    let schema = schema_of(schema.clone(), &at)?;
    Ok((at, schema))
}

fn schema_of(schema: Value, at: &Place) -> Result<Value> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        _ => Err(at.refuse("expected a JSON schema, as an object")),
    }
}

fn any_text(keys: &mut Keys<'_>) -> Result<Format> {
    if let Some((at, _)) = keys.take("max_tokens") {
        return Err(at.refuse("'max_tokens' is not supported; use 'max_chars'"));
    }
    Ok(Format::AnyText {
        excludes: excludes(keys)?,
        most: keys.number("max_chars", MOST_TIMES)?,
    })
}

fn times(keys: &mut Keys<'_>) -> Result<(u64, Option<u64>)> {
    let wrong = format!("expected 'min' and 'max' of at most {MOST_TIMES}, 'max' -1 for any");
    let unlimited = keys.has("max", -1);
    let least = keys.number("min", MOST_TIMES)?;
    let most = match unlimited {
        true => keys.take("max").and(None),
        false => Some(keys.number("max", MOST_TIMES)?.ok_or(())),
    };
    match (least, most.transpose()) {
        (Some(least), Ok(most)) if most.is_none_or(|most| most >= least) => Ok((least, most)),
        _ => Err(keys.place.refuse(wrong)),
    }
}

fn excludes(keys: &mut Keys<'_>) -> Result<Vec<String>> {
    match keys.take("excludes") {
        None => Ok(Vec::new()),
        Some((_, Value::Array(items))) if items.is_empty() => Ok(Vec::new()),
        Some((at, value)) => texts(value, &at),
    }
}

fn flags(keys: &mut Keys<'_>) -> Result<Flags> {
    let mut flag = |name| Ok(keys.flag(name)?.is_some_and(|(_, value)| value));
    Ok(Flags {
        at_least_one: flag("at_least_one")?,
        stop_after_first: flag("stop_after_first")?,
    })
}

/// Finds the trigger of each tag.
fn triggered(
    keys: &mut Keys<'_>,
    tags: Vec<(Tag, Place)>,
    (excludes, flags): (Vec<String>, Flags),
) -> Result<Triggered> {
    let (at, triggers) = keys.needed("triggers")?;
    let triggers = texts(triggers, &at)?;
    for (item, trigger) in triggers.iter().enumerate() {
        let mut others = triggers.iter().enumerate();
        let inner = others.find(|(other, text)| *other != item && trigger.contains(&**text));
        if let Some((_, inner)) = inner {
            let problem = format!(
                "the trigger '{}' contains the trigger '{}', so it can't be told which of them has \
                 come; leave one out",
                shown(trigger),
                shown(inner)
            );
            return Err(at.item(item).refuse(problem));
        }
        if !tags.iter().any(|(tag, _)| tag.begin.starts_with(trigger)) {
            let trigger = shown(trigger);
            let problem = format!("no tag begins with the trigger '{trigger}'; leave it out");
            return Err(at.item(item).refuse(problem));
        }
    }
    let mut found = Vec::new();
    for (tag, at) in tags {
        let trigger = triggers.iter().position(|one| tag.begin.starts_with(one));
        let trigger = trigger.ok_or_else(|| {
            let problem = "the tag begins with none of the triggers";
            at.below("begin").refuse(problem)
        })?;
        found.push((tag, trigger));
    }
    Ok(Triggered {
        triggers,
        tags: found,
        excludes,
        flags,
    })
}

fn ends(keys: &mut Keys<'_>) -> Result<Vec<String>> {
    match keys.needed("end")? {
        (_, Value::String(end)) => Ok(vec![end.clone()]),
        (at, Value::Array(ends)) if !ends.is_empty() && ends.len() <= MOST_TEXTS => {
            let ends = ends.iter().map(|end| end.as_str().map(str::to_owned));
            let ends: Option<_> = ends.collect();
            ends.ok_or_else(|| at.refuse("expected a text, or a list of texts"))
        }
        (at, _) => Err(at.refuse("expected a text, or a list of texts")),
    }
}

/// Reads a list of at least one text, none of them empty.
fn texts(value: &Value, at: &Place) -> Result<Vec<String>> {
    let text = |item: &Value| item.as_str().map(str::to_owned);
    let list = value
        .as_array()
        .filter(|list| (1..=MOST_TEXTS).contains(&list.len()));
    let texts: Option<Vec<String>> = list.and_then(|list| list.iter().map(text).collect());
    texts
        .filter(|texts| texts.iter().all(|text| !text.is_empty()))
        .ok_or_else(|| {
            let problem = format!("expected a list of 1 to {MOST_TEXTS} texts, none of them empty");
            at.refuse(problem)
        })
}

/// Returns the items of a list that has some, with their places.
fn list<'a>(value: &'a Value, at: &Place) -> Result<Vec<(Place, &'a Value)>> {
    let items = value.as_array().filter(|items| !items.is_empty());
    let items = items.ok_or_else(|| at.refuse("expected a list that is not empty"))?;
    let placed = items.iter().enumerate();
    Ok(placed.map(|(item, value)| (at.item(item), value)).collect())
}
