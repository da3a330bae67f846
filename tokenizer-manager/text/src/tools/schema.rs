//! Types of the arguments of tools, from their JSON Schemas.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

/// Most schemas that are looked at for the types of an argument.
const MOST_SCHEMAS: usize = 256;

/// The tools of a request, with the types of their arguments.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ToolSchemas {
    tools: HashMap<String, Arguments>,
    hold: bool,
    alone: bool,
}

/// Types of a tool's arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    listed: HashMap<String, Kinds>,
    /// Types of all others.
    rest: Kinds,
}

/// Types that an argument may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    string: bool,
    null: bool,
    other: bool,
    /// True if the format says that the value is JSON.
    json: bool,
}

impl ToolSchemas {
    /// Reads definitions of tools in OpenAI's form. Whatever has another form is left out.
    #[must_use]
    pub fn new(tools: &[Value]) -> Self {
        let none = Map::new();
        let tools = tools.iter().filter_map(|tool| {
            let function = &tool["function"];
            let root = function["parameters"].as_object();
            let root = root.unwrap_or(&none);
            let kinds = Kinds::listed(root).into_iter();
            let arguments = Arguments {
                listed: kinds
                    .map(|(name, kinds)| (name.to_owned(), kinds))
                    .collect(),
                rest: Kinds::of_rest(root),
            };
            Some((function["name"].as_str()?.to_owned(), arguments))
        });
        Self {
            tools: tools.collect(),
            hold: false,
            alone: false,
        }
    }

    /// Says that the output is held to a grammar of calls of these tools. It has calls only
    /// behind its reasoning, and what should be JSON is JSON.
    #[must_use]
    pub fn held(self) -> Self {
        Self { hold: true, ..self }
    }

    /// Says that the output is held to a grammar of either calls or an answer. An answer that
    /// does not begin with a call has none.
    #[must_use]
    pub fn alone(self) -> Self {
        Self {
            alone: true,
            ..self.held()
        }
    }

    /// True if an output has either calls or text.
    pub(crate) fn are_alone(&self) -> bool {
        self.alone
    }

    /// True if the output is held to a grammar.
    pub(crate) fn hold(&self) -> bool {
        self.hold
    }

    /// True if a tool has this name.
    pub(crate) fn has(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    /// Returns the types of a tool's argument.
    pub(crate) fn kinds(&self, tool: &str, argument: &str) -> Kinds {
        let tool = self.tools.get(tool);
        let kinds = tool.map(|tool| tool.listed.get(argument).copied().unwrap_or(tool.rest));
        kinds.unwrap_or_default()
    }
}

impl Kinds {
    /// A text, as formats say that tell texts from other values.
    pub const TEXT: Self = Self {
        string: true,
        null: false,
        other: false,
        json: false,
    };
    /// JSON, as such formats say.
    pub const JSON: Self = Self {
        string: false,
        null: false,
        other: true,
        json: true,
    };

    /// Reads the types from `type`, `enum`, `const`, the branches of a union, those of `allOf`, and
    /// references into the arguments' schema, `root`.
    pub fn of(schema: &Value, root: &Map<String, Value>) -> Self {
        let mut kinds = Self::default();
        kinds.add(schema, root, &mut { MOST_SCHEMAS });
        kinds
    }

    /// Reads the types of the arguments that a schema lists, itself or by a reference or `allOf`.
    pub fn listed(root: &Map<String, Value>) -> BTreeMap<&str, Self> {
        let mut listed = BTreeMap::new();
        for part in parts(root) {
            let properties = part.get("properties").and_then(Value::as_object);
            for (name, schema) in properties.into_iter().flatten() {
                let known = listed.entry(name.as_str()).or_insert(Self::default());
                *known = known.and(Self::of(schema, root));
            }
        }
        listed
    }

    /// Reads the types of arguments that a schema does not list.
    pub fn of_rest(root: &Map<String, Value>) -> Self {
        let parts = parts(root).into_iter();
        let rests = parts.filter_map(|part| part.get("additionalProperties"));
        rests.fold(Self::default(), |rest, schema| {
            rest.and(Self::of(schema, root))
        })
    }

    fn add(&mut self, schema: &Value, root: &Map<String, Value>, left: &mut usize) {
        if *left == 0 {
            return;
        }
        *left -= 1;
        match &schema["type"] {
            Value::String(name) => self.add_name(name),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str);
                names.for_each(|name| self.add_name(name));
            }
            _ => self.add_untyped(schema, root, left),
        }
    }

    fn add_untyped(&mut self, schema: &Value, root: &Map<String, Value>, left: &mut usize) {
        let values = schema["enum"].as_array().into_iter().flatten();
        for value in values.chain(schema.get("const")) {
            self.add_name(match value {
                Value::String(_) => "string",
                Value::Null => "null",
                _ => "other",
            });
        }
        for union in ["anyOf", "oneOf"] {
            let branches = schema[union].as_array().into_iter().flatten();
            branches.for_each(|branch| self.add(branch, root, left));
        }
        if let Some(target) = schema["$ref"].as_str().and_then(|to| target(root, to)) {
            self.add(target, root, left);
        }
        for branch in schema["allOf"].as_array().into_iter().flatten() {
            let mut kinds = Self::default();
            kinds.add(branch, root, left);
            *self = self.and(kinds);
        }
    }

    /// Returns the types that both allow. No type stands for types that are not told.
    fn and(self, other: Self) -> Self {
        match (self == Self::default(), other == Self::default()) {
            (true, _) => other,
            (_, true) => self,
            (false, false) => Self {
                string: self.string && other.string,
                null: self.null && other.null,
                other: self.other && other.other,
                json: self.json && other.json,
            },
        }
    }

    fn add_name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "null" => self.null = true,
            _ => self.other = true,
        }
    }

    /// True if every value is a string, so that it can be shown before it is whole.
    pub fn is_string(self) -> bool {
        self.string && !self.null && !self.other
    }

    /// True if a value may be JSON with strings inside.
    pub fn has_json(self) -> bool {
        !self.string || self.other
    }

    /// True if a value may be `null`.
    pub fn has_null(self) -> bool {
        self.null
    }

    /// Returns a written value as JSON: the value that its text spells if the argument may have
    /// that type, and a string otherwise.
    pub fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        let spelled = match trimmed {
            // Spellings of Python.
            "True" => Some("true"),
            "False" => Some("false"),
            "None" => Some("null"),
            _ => None,
        };
        let spelled = spelled.unwrap_or(trimmed);
        let parsed = serde_json::from_str::<serde::de::IgnoredAny>(spelled);
        let is_value = parsed.is_ok()
            && match spelled {
                _ if self.json => true,
                "null" => self.null || !self.string,
                _ if spelled.starts_with('"') => false,
                _ => self.other || !(self.string || self.null),
            };
        match is_value {
            true => spelled.to_owned(),
            false => Value::from(text).to_string(),
        }
    }
}

/// Returns a schema of arguments, and those to which it leads by references and `allOf`.
fn parts(root: &Map<String, Value>) -> Vec<&Map<String, Value>> {
    let mut parts = vec![root];
    let mut at = 0;
    while at < parts.len() && parts.len() < MOST_SCHEMAS {
        let part = parts[at];
        let reference = part.get("$ref").and_then(Value::as_str);
        let leads = reference.and_then(|to| target(root, to)).into_iter();
        let branches = part.get("allOf").and_then(Value::as_array);
        let leads = leads.chain(branches.into_iter().flatten());
        let leads: Vec<_> = leads.filter_map(Value::as_object).collect();
        for lead in leads.into_iter().take(MOST_SCHEMAS - parts.len()) {
            if !parts.iter().any(|known| std::ptr::eq(*known, lead)) {
                parts.push(lead);
            }
        }
        at += 1;
    }
    parts
}

/// Returns the schema to which a reference such as `#/$defs/name` points.
pub(crate) fn target<'a>(root: &'a Map<String, Value>, reference: &str) -> Option<&'a Value> {
    let mut parts = reference.strip_prefix("#/")?.split('/');
    let part = |part: &str| part.replace("~1", "/").replace("~0", "~");
    let first = root.get(&part(parts.next()?))?;
    parts.try_fold(first, |at, next| match at {
        Value::Array(items) => items.get(next.parse::<usize>().ok()?),
        other => other.get(part(next)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_found_behind_references_and_in_all_parts() {
        let root = json!({
            "$ref": "#/$defs/base",
            "allOf": [{"properties": {"b": {"allOf": [{"$ref": "#/$defs/text"}, {}]}}},
                {"$ref": "#"}, {"additionalProperties": {"type": "integer"}}],
            "properties": {"a": {"type": ["string", "null"]}, "c": {"allOf": [
                {"type": ["string", "integer"]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}]}},
            "$defs": {
                "text": {"type": "string"},
                "base": {"properties": {"a": {"$ref": "#/$defs/text"}, "d": {"allOf": []}}},
            },
        });
        let tool = json!({"function": {"name": "f", "parameters": root}});
        let tools = ToolSchemas::new(&[tool]);
        for (argument, string, json) in [
            ("a", true, false),
            ("b", true, false),
            ("c", false, true),
            ("d", false, true),
            ("rest", false, true),
        ] {
            let kinds = tools.kinds("f", argument);
            assert_eq!(
                (kinds.is_string(), kinds.has_json()),
                (string, json),
                "{argument}"
            );
        }
        assert_eq!(tools.kinds("f", "rest").json("5"), "5");
        assert_eq!(tools.kinds("f", "rest").json("x"), "\"x\"");
    }

    /// Schemas that lead to each other without end are read for a bounded time.
    #[test]
    fn schemas_that_lead_to_many_others_end() {
        let many: Vec<_> = (0..5000)
            .map(|at| json!({"$ref": format!("#/allOf/{}", at + 1)}))
            .collect();
        let root = json!({"allOf": many});
        let root = root.as_object().expect("an object");
        assert_eq!(parts(root).len(), MOST_SCHEMAS);
        assert_eq!(Kinds::of_rest(root), Kinds::default());
    }
}
