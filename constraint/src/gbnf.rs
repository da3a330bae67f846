//! Grammars in llama.cpp's notation (GBNF) and in the EBNF of SGLang and XGrammar, as Lark.
//!
//! Rules that refer to none of themselves become terminals. If that is all of the grammar, the
//! language is the same. In a recursive grammar terminals are as long as they can be: a word that
//! needs one to end earlier is left out, and no word is added.

mod parse;

use std::collections::BTreeMap;

use crate::ConstraintError;
use parse::{Grammar, Node};

/// Rule with which a grammar begins.
const ROOT: &str = "root";
/// Most bytes of the translation: rules that are terminals are copied into each other.
const MOST_BYTES: usize = 256 << 10;

/// Returns a grammar as Lark. One that has no `::=` is returned as it is.
///
/// # Errors
/// [`ConstraintError::Refused`], with the line at fault.
pub fn lark(text: &str) -> Result<String, ConstraintError> {
    if !text.contains("::=") {
        return Ok(text.to_owned());
    }
    let grammar = parse::parse(text)
        .map_err(|(line, problem)| ConstraintError::refused(format!("line {line}: {problem}")))?;
    if !grammar.rules.contains_key(ROOT) {
        return Err(ConstraintError::refused("it has no rule 'root'"));
    }
    let mut writer = Writer {
        grammar: &grammar,
        names: BTreeMap::new(),
        regular: BTreeMap::new(),
        rules: String::new(),
    };
    let start = match writer.regex_of(ROOT)? {
        Some(regex) => writer.terminal(&regex),
        None => writer.name(ROOT).clone(),
    };
    while let Some((rule, name)) = writer.unwritten() {
        let body = writer.node(&grammar.rules[&rule])?;
        writer.rules.push_str(&format!("{name}: {body}\n"));
        writer.check_size(0)?;
    }
    Ok(format!("start: {start}\n{}", writer.rules))
}

/// The form of a rule that is a terminal.
#[derive(Debug, Clone)]
enum Regular {
    /// It is being looked at, so it refers to itself.
    Open,
    Is(String),
    IsNot,
}

struct Writer<'a> {
    grammar: &'a Grammar,
    /// Lark's name of each rule that is used, and whether it is written.
    names: BTreeMap<String, (String, bool)>,
    regular: BTreeMap<String, Regular>,
    rules: String,
}

impl Writer<'_> {
    /// Returns a rule's name in Lark.
    fn name(&mut self, rule: &str) -> &String {
        let name = format!("r{}", self.names.len());
        let entry = self.names.entry(rule.to_owned());
        &entry.or_insert((name, false)).0
    }

    fn unwritten(&mut self) -> Option<(String, String)> {
        let (rule, (name, written)) = self.names.iter_mut().find(|(_, (_, written))| !written)?;
        *written = true;
        Some((rule.clone(), name.clone()))
    }

    fn check_size(&self, more: usize) -> Result<(), ConstraintError> {
        match self.rules.len() + more > MOST_BYTES {
            true => Err(ConstraintError::refused(format!(
                "it becomes longer than {MOST_BYTES} bytes; use fewer rules inside of others"
            ))),
            false => Ok(()),
        }
    }

    /// Returns the regular expression of a rule; `None` if it refers to itself.
    fn regex_of(&mut self, rule: &str) -> Result<Option<String>, ConstraintError> {
        match self.regular.get(rule) {
            Some(Regular::Open | Regular::IsNot) => return Ok(None),
            Some(Regular::Is(regex)) => return Ok(Some(regex.clone())),
            None => {}
        }
        self.regular.insert(rule.to_owned(), Regular::Open);
        let grammar = self.grammar;
        let regex = self.regex(&grammar.rules[rule])?;
        self.check_size(regex.as_ref().map_or(0, String::len))?;
        let known = regex.clone().map_or(Regular::IsNot, Regular::Is);
        self.regular.insert(rule.to_owned(), known);
        Ok(regex)
    }

    fn regex(&mut self, node: &Node) -> Result<Option<String>, ConstraintError> {
        Ok(match node {
            Node::Text(text) => Some(text.chars().map(escaped).collect()),
            Node::Class(class) => Some(class.clone()),
            Node::Rule(rule) => self.regex_of(rule)?,
            Node::Sequence(nodes) => self.regexes(nodes)?.map(|parts| parts.concat()),
            Node::Choice(nodes) => {
                let parts = self.regexes(nodes)?;
                parts.map(|parts| format!("({})", parts.join("|")))
            }
            Node::Repeat(node, least, most) => {
                let times = times(*least, *most);
                self.regex(node)?.map(|part| format!("({part}){times}"))
            }
        })
    }

    fn regexes(&mut self, nodes: &[Node]) -> Result<Option<Vec<String>>, ConstraintError> {
        let mut parts = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Some(part) = self.regex(node)? else {
                return Ok(None);
            };
            parts.push(part);
        }
        self.check_size(parts.iter().map(String::len).sum())?;
        Ok(Some(parts))
    }

    /// Returns the expression of a node of a rule that refers to itself.
    fn node(&mut self, node: &Node) -> Result<String, ConstraintError> {
        Ok(match node {
            Node::Text(text) if text.is_empty() => "\"\"".to_owned(),
            Node::Text(_) | Node::Class(_) => {
                let regex = self.regex(node)?;
                format!("/{}/", regex.unwrap_or_default())
            }
            Node::Rule(rule) => match self.regex_of(rule)? {
                Some(regex) => self.terminal(&regex),
                None => self.name(rule).clone(),
            },
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            Node::Sequence(nodes) => {
                let parts: Result<Vec<_>, _> = nodes.iter().map(|node| self.node(node)).collect();
                parts?.join(" ")
            }
            Node::Choice(nodes) => {
                let parts: Result<Vec<_>, _> = nodes.iter().map(|node| self.node(node)).collect();
                format!("({})", parts?.join(" | "))
            }
            Node::Repeat(node, least, most) => match self.regex(node)? {
                Some(regex) => self.terminal(&format!("({regex}){}", times(*least, *most))),
                None => format!("({}){}", self.node(node)?, times(*least, *most)),
            },
        })
    }

    /// Returns the expression of a regular expression. A terminal matches no empty text.
    fn terminal(&mut self, regex: &str) -> String {
        let name = format!("T{}", self.rules.len());
        self.rules
            .push_str(&format!("{name}: /{regex}/ & /(?s:.)+/\n"));
        match regex_matches_nothing(regex) {
            true => format!("{name}?"),
            false => name,
        }
    }
}

/// Returns true if an expression matches the empty text.
fn regex_matches_nothing(regex: &str) -> bool {
    let parsed = regex_syntax::parse(regex);
    parsed.is_ok_and(|parsed| parsed.properties().minimum_len() == Some(0))
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// Returns a character in a regular expression.
fn escaped(c: char) -> String {
    match c {
        c if c.is_ascii_alphanumeric() => c.to_string(),
        c => format!("\\x{{{:x}}}", u32::from(c)),
    }
}
