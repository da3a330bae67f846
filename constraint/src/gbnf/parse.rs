//! Syntax of GBNF.

use std::collections::BTreeMap;

use lockstep_text::lark::regex_of;

/// Deepest nesting of groups.
const DEEPEST: usize = 64;
/// Most repetitions behind one part.
const MOST_OPERATORS: usize = 4;
/// Most repetitions by number.
const MOST_TIMES: u32 = 4096;

/// A line, from 1, and what is wrong there.
pub(super) type Fault = (usize, String);

/// Rules by their names.
#[derive(Debug)]
pub(super) struct Grammar {
    pub rules: BTreeMap<String, Node>,
}

/// A part of a rule.
#[derive(Debug)]
pub(super) enum Node {
    Text(String),
    /// A set of characters, as a regular expression.
    Class(String),
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// The least and the most repetitions.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Parses a grammar.
pub(super) fn parse(text: &str) -> Result<Grammar, Fault> {
    let mut parser = Parser {
        text,
        rest: text,
        depth: 0,
        used: Vec::new(),
    };
    let mut rules = BTreeMap::new();
    parser.blanks();
    while !parser.rest.is_empty() {
        let name = parser.rule_head().ok_or_else(|| {
            parser.fault("expected a rule, such as 'name ::= \"text\"'".to_owned())
        })?;
        parser.skip(name.len());
        parser.blanks();
        parser.skip("::=".len());
        let body = parser.choice()?;
        if rules.insert(name.to_owned(), body).is_some() {
            return Err(parser.fault(format!("the rule '{name}' is there twice")));
        }
    }
    match parser
        .used
        .iter()
        .find(|(name, _)| !rules.contains_key(name))
    {
        Some((name, at)) => {
            let line = line_at(text, *at);
            Err((line, format!("there is no rule '{name}'")))
        }
        None => Ok(Grammar { rules }),
    }
}

/// Returns the line, from 1, of a place in a text.
fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
    /// Rules that are referred to, with the place.
    used: Vec<(String, usize)>,
}

impl<'a> Parser<'a> {
    /// Returns how much is read.
    fn at(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    fn fault(&self, problem: String) -> Fault {
        (line_at(self.text, self.at()), problem)
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    fn blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.starts_with('#') {
                true => self.skip(self.rest.find('\n').unwrap_or(self.rest.len())),
                false => return,
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.skip(c.len_utf8());
        Some(c)
    }

    fn takes(&mut self, c: char) -> bool {
        let taken = self.rest.starts_with(c);
        if taken {
            self.skip(c.len_utf8());
        }
        taken
    }

    fn name(&self) -> &'a str {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let end = self.rest.find(|c| !plain(c)).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    /// Returns the name of the rule that begins here.
    fn rule_head(&self) -> Option<&'a str> {
        let name = self.name();
        let behind = self.rest[name.len()..].trim_start();
        (!name.is_empty() && behind.starts_with("::=")).then_some(name)
    }

    fn choice(&mut self) -> Result<Node, Fault> {
        let mut ways = vec![self.sequence()?];
        while self.takes('|') {
            ways.push(self.sequence()?);
        }
        Ok(match ways.len() {
            1 => ways.remove(0),
            _ => Node::Choice(ways),
        })
    }

    fn sequence(&mut self) -> Result<Node, Fault> {
        let mut nodes = Vec::new();
        loop {
            self.blanks();
            let ends = self.rest.is_empty()
                || self.rest.starts_with(['|', ')'])
                || self.rule_head().is_some();
            if ends && (self.depth > 0 || !self.rest.starts_with(')')) {
                return Ok(match nodes.len() {
                    1 => nodes.remove(0),
                    _ => Node::Sequence(nodes),
                });
            }
            let mut node = self.item()?;
            let mut operators = 0;
            while let Some((least, most)) = self.times()? {
                operators += 1;
                if operators > MOST_OPERATORS {
                    let problem = format!(
                        "more than {MOST_OPERATORS} repetitions are behind one part; leave some out"
                    );
                    return Err(self.fault(problem));
                }
                node = Node::Repeat(Box::new(node), least, most);
            }
            nodes.push(node);
        }
    }

    fn item(&mut self) -> Result<Node, Fault> {
        let name = self.name();
        if !name.is_empty() && !name.starts_with('.') {
            self.used.push((name.to_owned(), self.at()));
            self.skip(name.len());
            return Ok(Node::Rule(name.to_owned()));
        }
        match self.next() {
            Some(quote @ ('"' | '\'')) => self.quoted(quote),
            Some('[') => self.class(),
            Some('.') => Ok(Node::Class("(?s:.)".to_owned())),
            Some('(') if self.rest.starts_with("?=") || self.rest.starts_with("?!") => {
                Err(self.fault("look-ahead is not supported; leave it out".to_owned()))
            }
            Some('(') => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(self.fault(format!("groups nest deeper than {DEEPEST}")));
                }
                let inner = self.choice()?;
                self.depth -= 1;
                match self.takes(')') {
                    true => Ok(inner),
                    false => Err(self.fault("a ')' is missing".to_owned())),
                }
            }
            Some('<') => Err(self.fault("tokens, such as '<[5]>', are not supported".to_owned())),
            Some(c) => Err(self.fault(format!("'{c}' is not expected there"))),
            None => Err(self.fault("the grammar ends too early".to_owned())),
        }
    }

    fn times(&mut self) -> Result<Option<(u32, Option<u32>)>, Fault> {
        Ok(match self.rest.chars().next() {
            Some('*') => self.taken((0, None)),
            Some('+') => self.taken((1, None)),
            Some('?') => self.taken((0, Some(1))),
            Some('{') => {
                let end = self.rest.find('}').unwrap_or_default();
                let inside = self.rest.get(1..end).unwrap_or_default().to_owned();
                let wrong = || {
                    self.fault(format!(
                        "repetitions are written '{{m}}', '{{m,}}' or '{{m,n}}', of at most \
                         {MOST_TIMES}"
                    ))
                };
                let number = |text: &str| text.trim().parse().ok().filter(|n| *n <= MOST_TIMES);
                let times = match inside.split_once(',') {
                    None => number(&inside).map(|times| (times, Some(times))),
                    Some((least, most)) if most.trim().is_empty() => {
                        number(least).map(|least| (least, None))
                    }
                    Some((least, most)) => {
                        number(least).zip(number(most)).map(|(a, b)| (a, Some(b)))
                    }
                };
                let times = times.filter(|(least, most)| most.is_none_or(|most| most >= *least));
                let times = times.ok_or_else(wrong)?;
                self.skip(end);
                self.taken(times)
            }
            _ => None,
        })
    }

    fn taken<T>(&mut self, value: T) -> Option<T> {
        self.skip(1);
        Some(value)
    }

    fn quoted(&mut self, quote: char) -> Result<Node, Fault> {
        let mut text = String::new();
        loop {
            match self.next() {
                Some(c) if c == quote => return Ok(Node::Text(text)),
                Some('\\') => text.push(self.escape()?),
                Some('\n') | None => return Err(self.fault("a quote is missing".to_owned())),
                Some(c) => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if c.is_ascii_punctuation() => return Ok(c),
            _ => return Err(self.fault("there is no such escape".to_owned())),
        };
        let code = self.rest.get(..digits);
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let c = code.and_then(char::from_u32).ok_or_else(|| {
            self.fault(format!(
                "{digits} hexadecimal digits of a character are missing"
            ))
        })?;
        self.skip(digits);
        Ok(c)
    }

    fn class(&mut self) -> Result<Node, Fault> {
        let mut class = String::from(if self.takes('^') { "[^" } else { "[" });
        let mut empty = true;
        while let Some(c) = self.class_char()? {
            empty = false;
            class.push_str(&regex_of(c.encode_utf8(&mut [0; 4])));
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.skip(1);
                let end = self.class_char()?.filter(|end| *end >= c);
                let end =
                    end.ok_or_else(|| self.fault("a range ends before it begins".to_owned()))?;
                class.push('-');
                class.push_str(&regex_of(end.encode_utf8(&mut [0; 4])));
            }
        }
        match empty {
            true => Err(self.fault("a set of characters is empty".to_owned())),
            false => Ok(Node::Class(class + "]")),
        }
    }

    /// Returns the next character of a set; `None` at its end.
    fn class_char(&mut self) -> Result<Option<char>, Fault> {
        match self.next() {
            Some(']') => Ok(None),
            Some('\\') => self.escape().map(Some),
            Some('\n') | None => Err(self.fault("a ']' is missing".to_owned())),
            Some(c) => Ok(Some(c)),
        }
    }
}
