//! Grammars in llama.cpp's notation (GBNF) and in the EBNF of SGLang and XGrammar, as Lark.
//!
//! Rules that refer to none of themselves become terminals. If that is all of the grammar, the
//! language is the same. In a recursive grammar terminals are as long as they can be: a word that
//! needs one to end earlier is left out, and no word is added.

mod parse;

use std::collections::BTreeMap;

use lockstep_text::lark::regex_of;
use lockstep_types::constraint::CONSTRAINT_BYTES;

use crate::{ConstraintError, bounds};
use parse::{Grammar, Node};

/// Rule with which a grammar begins.
const ROOT: &str = "root";
/// Most bytes that are copied to translate a grammar: rules that are terminals are copied into each
/// other.
const MOST_COPIED: usize = 16 << 20;
/// Deepest nesting of parts, through all rules that are terminals.
const DEEPEST: usize = 256;

/// Returns a grammar as Lark. One that is not in GBNF or EBNF, which have `::=` outside of texts,
/// comments and regular expressions, is returned as it is.
///
/// # Errors
/// [`ConstraintError::Refused`], with the line at fault; for a text or a translation of more than
/// [`CONSTRAINT_BYTES`] bytes too.
pub fn lark(text: &str) -> Result<String, ConstraintError> {
    bounds::length(text)?;
    if !bounds::is_gbnf(text) {
        return match assignment(text) {
            None => Ok(text.to_owned()),
            Some((line, sign)) => Err(ConstraintError::refused(format!(
                "line {line}: rules are written with '::=' in EBNF and with ':' in Lark, not with \
                 '{sign}'"
            ))),
        };
    }
    let grammar = parsed(text)?;
    let mut writer = Writer::new(&grammar, "");
    let start = match writer.regex_of(ROOT)? {
        Some(regex) => writer.terminal(&regex)?,
        None => writer.name(ROOT),
    };
    writer.write_rules()?;
    writer.rules.insert_str(0, &format!("start: {start}\n"));
    writer.check_size(0)?;
    Ok(writer.rules)
}

/// A grammar as a part of another one in Lark.
pub(crate) enum Part {
    /// A regular expression, for use between slashes.
    Regex(String),
    /// An expression, and the rules that it needs.
    Rules { start: String, rules: String },
}

/// Returns a grammar in GBNF or EBNF as a part of another one. `prefix` keeps the names of its
/// rules apart from others.
///
/// # Errors
/// As [`lark`]; for a grammar in Lark too.
pub(crate) fn part(text: &str, prefix: &str) -> Result<Part, ConstraintError> {
    bounds::length(text)?;
    if !bounds::is_gbnf(text) {
        return Err(ConstraintError::refused(
            "it must be in EBNF, with '::=' and a rule 'root'",
        ));
    }
    let grammar = parsed(text)?;
    let mut writer = Writer::new(&grammar, prefix);
    if let Some(regex) = writer.regex_of(ROOT)? {
        return Ok(Part::Regex(regex));
    }
    let start = writer.name(ROOT);
    writer.write_rules()?;
    writer.check_size(0)?;
    let rules = writer.rules;
    Ok(Part::Rules { start, rules })
}

/// Returns the first line, from 1, that begins like a rule in a notation that is neither EBNF nor
/// Lark, and its sign.
fn assignment(text: &str) -> Option<(usize, &'static str)> {
    let sign = |line: &str| {
        let rule = line.trim_start();
        let rule = rule.trim_start_matches(['<', '?', '!']);
        let behind = rule.trim_start_matches(|c: char| c.is_alphanumeric() || "_-.>".contains(c));
        let is_named = behind.len() < rule.len();
        let behind = behind.trim_start();
        let mut signs = [":=", "="].into_iter();
        signs.find(|sign| is_named && behind.starts_with(sign))
    };
    let mut lines = (1..).zip(text.lines());
    lines.find_map(|(number, line)| Some((number, sign(line)?)))
}

fn parsed(text: &str) -> Result<Grammar, ConstraintError> {
    let grammar = parse::parse(text)
        .map_err(|(line, problem)| ConstraintError::refused(format!("line {line}: {problem}")))?;
    match grammar.rules.contains_key(ROOT) {
        true => Ok(grammar),
        false => Err(ConstraintError::refused("it has no rule 'root'")),
    }
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
    /// First letters of all names in Lark, behind the one that tells their kind.
    prefix: &'a str,
    /// Lark's name of each rule that is used.
    names: BTreeMap<String, String>,
    /// Rules that are used and not yet written, with their names.
    unwritten: Vec<(String, String)>,
    regular: BTreeMap<String, Regular>,
    rules: String,
    copied: usize,
    depth: usize,
}

impl<'a> Writer<'a> {
    fn new(grammar: &'a Grammar, prefix: &'a str) -> Self {
        Self {
            grammar,
            prefix,
            names: BTreeMap::new(),
            unwritten: Vec::new(),
            regular: BTreeMap::new(),
            rules: String::new(),
            copied: 0,
            depth: 0,
        }
    }

    /// Writes all rules that are used.
    fn write_rules(&mut self) -> Result<(), ConstraintError> {
        let grammar = self.grammar;
        while let Some((rule, name)) = self.unwritten.pop() {
            let body = self.node(&grammar.rules[&rule])?;
            self.check_size(body.len())?;
            self.rules.push_str(&format!("{name}: {body}\n"));
        }
        Ok(())
    }

    /// Returns a rule's name in Lark.
    fn name(&mut self, rule: &str) -> String {
        if let Some(name) = self.names.get(rule) {
            return name.clone();
        }
        let name = format!("r{}{}", self.prefix, self.names.len());
        self.unwritten.push((rule.to_owned(), name.clone()));
        self.names.insert(rule.to_owned(), name.clone());
        name
    }

    /// Refuses a translation with so many bytes more than are written.
    fn check_size(&self, more: usize) -> Result<(), ConstraintError> {
        let grows = self.rules.len() + more > CONSTRAINT_BYTES || self.copied > MOST_COPIED;
        match grows {
            true => Err(ConstraintError::refused(format!(
                "its translation to Lark grows to more than {CONSTRAINT_BYTES} bytes; use fewer \
                 rules inside of others"
            ))),
            false => Ok(()),
        }
    }

    /// Counts a copy of so many bytes as a part of the translation.
    fn copies(&mut self, bytes: usize) -> Result<(), ConstraintError> {
        self.copied += bytes;
        self.check_size(bytes)
    }

    /// Translates a part that lies inside another.
    fn deeper<T>(
        &mut self,
        translate: impl FnOnce(&mut Self) -> Result<T, ConstraintError>,
    ) -> Result<T, ConstraintError> {
        if self.depth == DEEPEST {
            return Err(ConstraintError::refused(format!(
                "its rules and groups nest deeper than {DEEPEST}; put fewer inside of others"
            )));
        }
        self.depth += 1;
        let translated = translate(self);
        self.depth -= 1;
        translated
    }

    /// Returns the regular expression of a rule; `None` if it refers to itself.
    fn regex_of(&mut self, rule: &str) -> Result<Option<String>, ConstraintError> {
        match self.regular.get(rule) {
            Some(Regular::Open | Regular::IsNot) => return Ok(None),
            Some(Regular::Is(regex)) => {
                let regex = regex.clone();
                self.copies(regex.len())?;
                return Ok(Some(regex));
            }
            None => {}
        }
        self.regular.insert(rule.to_owned(), Regular::Open);
        let grammar = self.grammar;
        let regex = self.regex(&grammar.rules[rule])?;
        self.copies(regex.as_ref().map_or(0, String::len))?;
        let known = regex.clone().map_or(Regular::IsNot, Regular::Is);
        self.regular.insert(rule.to_owned(), known);
        Ok(regex)
    }

    fn regex(&mut self, node: &Node) -> Result<Option<String>, ConstraintError> {
        Ok(match node {
            Node::Text(text) => Some(regex_of(text)),
            Node::Class(class) => Some(class.clone()),
            Node::Rule(rule) => self.deeper(|writer| writer.regex_of(rule))?,
            Node::Sequence(nodes) => self.regexes(nodes)?.map(|parts| parts.concat()),
            Node::Choice(nodes) => {
                let parts = self.regexes(nodes)?;
                parts.map(|parts| format!("({})", parts.join("|")))
            }
            Node::Repeat(node, least, most) => {
                let times = times(*least, *most);
                let part = self.deeper(|writer| writer.regex(node))?;
                part.map(|part| format!("({part}){times}"))
            }
        })
    }

    fn regexes(&mut self, nodes: &[Node]) -> Result<Option<Vec<String>>, ConstraintError> {
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for node in nodes {
            let Some(part) = self.deeper(|writer| writer.regex(node))? else {
                return Ok(None);
            };
            bytes += part.len();
            self.check_size(bytes)?;
            parts.push(part);
        }
        self.copies(bytes)?;
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
                Some(regex) => self.terminal(&regex)?,
                None => self.name(rule),
            },
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            Node::Sequence(nodes) => self.nodes(nodes, " ")?,
            Node::Choice(nodes) => format!("({})", self.nodes(nodes, " | ")?),
            Node::Repeat(node, least, most) => {
                let times = times(*least, *most);
                match self.deeper(|writer| writer.regex(node))? {
                    Some(regex) => self.terminal(&format!("({regex}){times}"))?,
                    None => format!("({}){times}", self.deeper(|writer| writer.node(node))?),
                }
            }
        })
    }

    /// Returns the expressions of nodes with this text between them.
    fn nodes(&mut self, nodes: &[Node], between: &str) -> Result<String, ConstraintError> {
        let mut all = String::new();
        for (at, node) in nodes.iter().enumerate() {
            if at > 0 {
                all.push_str(between);
            }
            all.push_str(&self.deeper(|writer| writer.node(node))?);
            self.check_size(all.len())?;
        }
        Ok(all)
    }

    /// Returns the expression of a regular expression. A terminal matches no empty text.
    fn terminal(&mut self, regex: &str) -> Result<String, ConstraintError> {
        self.copies(regex.len())?;
        let name = format!("T{}{}", self.prefix, self.rules.len());
        self.rules
            .push_str(&format!("{name}: /{regex}/ & /(?s:.)+/\n"));
        Ok(match regex_matches_nothing(regex) {
            true => format!("{name}?"),
            false => name,
        })
    }
}

/// Returns true if an expression matches the empty text.
pub(crate) fn regex_matches_nothing(regex: &str) -> bool {
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
