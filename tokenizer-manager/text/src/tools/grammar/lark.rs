//! Writer of a grammar.

use serde_json::{Map, Value};

use super::schema::Unwritable;
use super::{CallableTool, GRAMMAR_BYTES, GrammarError, bare};
use crate::lark::literal;
use crate::marks::{Mark, Role};
use crate::tokenizer::Tokenizer;

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
    /// First letters of all names of rules and terminals, behind the one that tells their kind.
    prefix: &'a str,
    marks: &'static [&'static str],
    /// Tokens of the marks that are one.
    ids: Vec<Option<u32>>,
    /// Tools that may be called.
    pub tools: &'a [CallableTool<'a>],
    rules: String,
    count: usize,
    any_object: Option<String>,
    /// Bytes of schemas so far.
    written: usize,
    /// True if the grammar is longer than it may be, so that nothing else is written.
    full: bool,
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
            ids: ids.collect(),
            ..Self::spelled(marks, tools, "")
        }
    }

    /// Makes the writer of a part of a grammar, in which all marks are spelled. `prefix` keeps its
    /// names apart from others.
    pub fn spelled(
        marks: &'static [&'static str],
        tools: &'a [CallableTool<'a>],
        prefix: &'a str,
    ) -> Self {
        Self {
            prefix,
            marks,
            ids: vec![None; marks.len()],
            tools,
            rules: String::new(),
            count: 0,
            any_object: None,
            written: 0,
            full: false,
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
        let name = format!("{kind}{}{}", self.prefix, self.count);
        self.count += 1;
        self.full |= self.rules.len() + body.len() > GRAMMAR_BYTES;
        if self.full {
            return name;
        }
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
            Some(Value::Object(_)) if self.full => String::new(),
            Some(Value::Object(schema)) => self.json(&as_object(&bare::map(schema))),
            _ => self.any_object(),
        }
    }

    fn any_object(&mut self) -> String {
        if let Some(rule) = &self.any_object {
            return rule.clone();
        }
        let rule = self.rule("%json {\"type\":\"object\"}");
        self.any_object.insert(rule).clone()
    }

    /// Returns the expression of a schema's instances.
    fn json(&mut self, schema: &Value) -> String {
        let expression = format!("%json {schema}");
        self.written += expression.len();
        self.full |= self.written > GRAMMAR_BYTES;
        expression
    }

    /// Returns the expression of the instances of a schema inside another, `root`.
    ///
    /// # Errors
    /// [`Unwritable`] for a reference that does not lead to a definition of `root`.
    pub(in super::super) fn part(
        &mut self,
        schema: &Value,
        root: &Map<String, Value>,
    ) -> Result<String, Unwritable> {
        if self.full {
            return Ok(String::new());
        }
        let part = bare::part(schema, root)?;
        Ok(self.json(&part))
    }

    /// True if the grammar is longer than it may be, and will be refused.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the whole grammar.
    ///
    /// # Errors
    /// [`GrammarError::TooLong`].
    pub fn finish(self, start: &str) -> Result<String, GrammarError> {
        let grammar = format!("start: {start}\n{}", self.rules);
        match self.full || grammar.len() > GRAMMAR_BYTES {
            true => Err(GrammarError::TooLong),
            false => Ok(grammar),
        }
    }

    /// Returns the rules alone.
    ///
    /// # Errors
    /// [`GrammarError::TooLong`].
    pub fn into_rules(self) -> Result<String, GrammarError> {
        match self.full {
            true => Err(GrammarError::TooLong),
            false => Ok(self.rules),
        }
    }
}

/// Returns a schema whose instances are objects alone, since arguments are.
fn as_object(schema: &Map<String, Value>) -> Value {
    let mut schema = schema.clone();
    schema.entry("type").or_insert_with(|| "object".into());
    Value::Object(schema)
}

/// Returns the expression of a call as a JSON object, with its arguments under this key.
pub(in super::super) fn call_object(lark: &mut Lark<'_>, tool: usize, key: &str) -> String {
    let name = Value::from(lark.tools[tool].name);
    let head = literal(&format!("{{\"name\": {name}, \"{key}\": "));
    format!("{head} {} \"}}\"", lark.arguments(tool))
}
