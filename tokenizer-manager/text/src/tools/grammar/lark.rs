//! Writer of a grammar.

use serde_json::{Map, Value, json};

use super::{CallableTool, GrammarError};
use crate::marks::{Mark, Role};
use crate::tokenizer::Tokenizer;

/// Keys behind which a schema may define others, for references into it.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// One call, or one block of calls.
#[derive(Debug)]
pub(crate) struct Unit {
    /// Place in the format's list of the mark with which it begins; `None` = it has none.
    pub opening: Option<usize>,
    /// Expression of all that follows that mark.
    pub rest: String,
    /// Expression between two of them; `None` = an output has only one.
    pub between: Option<String>,
}

/// Writer of one grammar.
#[derive(Debug)]
pub(crate) struct Lark<'a> {
    marks: &'static [&'static str],
    /// Tokens of the marks that are one.
    ids: Vec<Option<u32>>,
    /// Tools that may be called.
    pub tools: &'a [CallableTool<'a>],
    rules: String,
    count: usize,
    any_object: Option<String>,
}

impl<'a> Lark<'a> {
    pub fn new(
        marks: &'static [&'static str],
        tokenizer: &Tokenizer,
        tools: &'a [CallableTool<'a>],
    ) -> Self {
        let ids = marks.iter().copied().enumerate();
        let ids = ids.map(|mark| Mark::new(mark, Role::Call, tokenizer, true).id);
        Self {
            marks,
            ids: ids.collect(),
            tools,
            rules: String::new(),
            count: 0,
            any_object: None,
        }
    }

    /// Returns the spelling of a mark.
    pub fn text(&self, mark: usize) -> &'static str {
        self.marks[mark]
    }

    /// True if a mark is one token.
    pub fn is_token(&self, mark: usize) -> bool {
        self.ids[mark].is_some()
    }

    /// Returns the expression of a mark.
    pub fn mark(&self, mark: usize) -> String {
        match self.ids[mark] {
            Some(id) => format!("<[{id}]>"),
            None => literal(self.marks[mark]),
        }
    }

    /// Adds a rule, and returns its name.
    pub fn rule(&mut self, body: &str) -> String {
        self.add('r', body)
    }

    /// Adds a terminal, and returns its name.
    pub fn terminal(&mut self, body: &str) -> String {
        self.add('T', body)
    }

    fn add(&mut self, kind: char, body: &str) -> String {
        let name = format!("{kind}{}", self.count);
        self.count += 1;
        self.rules.push_str(&format!("{name}: {body}\n"));
        name
    }

    /// Adds a rule of alternatives, one for each tool, and returns its name.
    pub fn each_tool(
        &mut self,
        mut write: impl FnMut(&mut Self, usize) -> Result<String, GrammarError>,
    ) -> Result<String, GrammarError> {
        let tools = 0..self.tools.len();
        let bodies: Result<Vec<_>, _> = tools.map(|at| write(self, at)).collect();
        Ok(self.rule(&bodies?.join("\n  | ")))
    }

    /// Returns the expression of a tool's arguments as a JSON object.
    pub fn arguments(&mut self, tool: usize) -> String {
        match self.tools[tool].schema {
            Some(Value::Object(schema)) => json_expression(&as_object(schema)),
            _ => self.any_object(),
        }
    }

    fn any_object(&mut self) -> String {
        if let Some(rule) = &self.any_object {
            return rule.clone();
        }
        let rule = self.rule(&json_expression(&json!({"type": "object"})));
        self.any_object.insert(rule).clone()
    }

    /// Returns the whole grammar.
    pub fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.rules)
    }
}

/// Returns a schema whose instances are objects alone, since arguments are.
fn as_object(schema: &Map<String, Value>) -> Value {
    let mut schema = schema.clone();
    schema.entry("type").or_insert_with(|| "object".into());
    Value::Object(schema)
}

/// Returns the expression of a schema's instances.
pub(super) fn json_expression(schema: &Value) -> String {
    format!("%json {schema}")
}

/// Returns the expression of the instances of a schema inside another, `root`.
pub(super) fn part_expression(schema: &Value, root: &Map<String, Value>) -> String {
    let Value::Object(part) = schema else {
        return json_expression(schema);
    };
    let mut part = part.clone();
    for key in DEFINITIONS {
        if let Some(definitions) = root.get(key) {
            part.insert(key.to_owned(), definitions.clone());
        }
    }
    json_expression(&Value::Object(part))
}

/// Returns the expression of a text.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Returns the expression of a call as a JSON object, with its arguments under this key.
pub(in super::super) fn call_object(lark: &mut Lark<'_>, tool: usize, key: &str) -> String {
    let name = Value::from(lark.tools[tool].name);
    let head = literal(&format!("{{\"name\": {name}, \"{key}\": "));
    format!("{head} {} \"}}\"", lark.arguments(tool))
}

/// Returns the regular expression of a text, for use between slashes.
pub(super) fn regex_of(text: &str) -> String {
    let mut regex = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => regex.push(c),
            c => regex.push_str(&format!("\\x{{{:x}}}", u32::from(c))),
        }
    }
    regex
}
