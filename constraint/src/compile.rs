//! From a constraint to llguidance's grammar.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use llguidance::api::TopLevelGrammar;
use lockstep_text::lark::one_of;
use lockstep_types::constraint::{Constraint, ConstraintKind};

use crate::{
    Cancel, ConstraintError, Matcher, Vocabulary, bounds, json::json_options, mark::Mark,
    marks::Marks, tags, walk,
};

/// Longest time for a constraint to be compiled where it is checked, so that the steps of a lead,
/// which compiles it again, do not wait for it long.
const LONGEST: Duration = Duration::from_secs(1);

/// Stack of the thread that compiles, of which only the touched part takes memory.
const STACK: usize = 256 << 20;

/// A compiled constraint, from which each request's matcher is cloned.
pub(crate) struct Compiled {
    grammar: llguidance::Matcher,
    before: Option<(Option<u32>, Arc<Mark>)>,
}

impl Compiled {
    /// Compiles a constraint, computes its first mask, and with `walks` follows it for some
    /// hundred tokens.
    ///
    /// # Errors
    /// [`ConstraintError`].
    pub fn new(
        constraint: &Constraint,
        (vocabulary, marks): (&Arc<Vocabulary>, &Marks),
        cancel: &Cancel,
        walks: bool,
    ) -> Result<Self, ConstraintError> {
        // Compiling a schema takes a frame for each level, references included.
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK);
            let compile = || Self::compile(constraint, (vocabulary, marks), cancel, walks);
            let thread = thread
                .name("grammar".to_owned())
                .spawn_scoped(scope, compile);
            let done = thread.map(thread::ScopedJoinHandle::join);
            let failed = || ConstraintError::refused("it can't be compiled; simplify it");
            done.map_err(|_| ConstraintError::Slow)?
                .map_err(|_| failed())?
        })
    }

    fn compile(
        constraint: &Constraint,
        (vocabulary, marks): (&Arc<Vocabulary>, &Marks),
        cancel: &Cancel,
        walks: bool,
    ) -> Result<Self, ConstraintError> {
        let begun = Instant::now();
        let grammar = grammar(constraint, vocabulary)?;
        let parser = vocabulary.factory().create_parser(grammar);
        let parser =
            parser.map_err(|error| ConstraintError::told(constraint.kind, &error.to_string()))?;
        let grammar = llguidance::Matcher::new(Ok(parser));
        if let Some(error) = grammar.get_error() {
            return Err(ConstraintError::told(constraint.kind, &error));
        }
        if walks && begun.elapsed() > LONGEST {
            return Err(ConstraintError::Slow);
        }
        let before = match &constraint.after {
            None => None,
            Some(after) => {
                let close = marks.of(&after.close);
                let close = close.ok_or_else(|| {
                    ConstraintError::refused("the mark that ends the reasoning is empty")
                })?;
                let open = after.open.as_ref();
                // A mark of several tokens can't be told from the constrained part in time.
                let token = |open: &Arc<str>| {
                    vocabulary.token(open.as_bytes()).ok_or_else(|| {
                        ConstraintError::refused(format!(
                            "the mark '{open}', with which this model's reasoning begins, is not \
                             one token, so reasoning can't come before a constrained output; \
                             turn the reasoning off, by the chat template or by \
                             `--reasoning-parser none`"
                        ))
                    })
                };
                Some((open.map(token).transpose()?, close))
            }
        };
        let compiled = Self { grammar, before };
        walk::walk(compiled.constrained(vocabulary), cancel, walks)
            .map_err(|error| error.of(constraint.kind))?;
        Ok(compiled)
    }

    /// Makes the matcher of a request, which shares nothing that is locked.
    pub fn matcher(&self, vocabulary: &Arc<Vocabulary>) -> Matcher {
        let mut grammar = self.grammar.deep_clone();
        // Only a mask sets the fuel of the tokens after it. One that fails is told of later.
        let _ = grammar.compute_mask();
        Matcher::new(grammar, vocabulary.clone(), self.before.clone())
    }

    /// Makes a matcher of the constrained part alone, which can be cancelled.
    fn constrained(&self, vocabulary: &Arc<Vocabulary>) -> Matcher {
        let grammar = self.grammar.deep_clone().into_cancellable();
        Matcher::new(grammar, vocabulary.clone(), None)
    }
}

fn grammar(
    constraint: &Constraint,
    vocabulary: &Vocabulary,
) -> Result<TopLevelGrammar, ConstraintError> {
    bounds::length(&constraint.text)?;
    Ok(match constraint.kind {
        ConstraintKind::JsonSchema => {
            let mut schema = bounds::schema(&constraint.text)?;
            json_options(constraint.whitespace).apply_to(&mut schema);
            TopLevelGrammar::from_json_schema(schema)
        }
        ConstraintKind::Regex => {
            let pattern = bounds::whole(&constraint.text);
            bounds::regex(pattern).map_err(ConstraintError::refused)?;
            // Digits and letters are ASCII's, as in a schema's patterns.
            let pattern = llguidance::regex_to_lark(pattern, "dw");
            TopLevelGrammar::from_lark(format!("start: /{pattern}/"))
        }
        ConstraintKind::Choice => TopLevelGrammar::from_regex(&choice(&constraint.text)?),
        ConstraintKind::Lark => {
            let options = json_options(constraint.whitespace);
            let grammar = bounds::lark(&constraint.text, |schema| options.apply_to(schema))?;
            TopLevelGrammar::from_lark(grammar)
        }
        ConstraintKind::StructuralTag => {
            let grammar = tags::lark(&constraint.text, constraint.whitespace, vocabulary)?;
            TopLevelGrammar::from_lark(grammar)
        }
    })
}

/// Returns an expression of a grammar whose words are those of a schema, a regular expression or a
/// list of choices.
///
/// # Errors
/// [`ConstraintError`] for a text that is none, and for a grammar or a structural tag, whose rules
/// may have the names of others.
pub fn expression(kind: ConstraintKind, text: &str) -> Result<String, ConstraintError> {
    bounds::length(text)?;
    Ok(match kind {
        ConstraintKind::JsonSchema => format!("%json {}", bounds::schema(text)?),
        ConstraintKind::Regex => {
            let pattern = bounds::whole(text);
            bounds::regex(pattern).map_err(ConstraintError::refused)?;
            format!("/{}/", llguidance::regex_to_lark(pattern, "dw"))
        }
        ConstraintKind::Choice => format!("/{}/", choice(text)?),
        ConstraintKind::Lark | ConstraintKind::StructuralTag => {
            return Err(ConstraintError::refused(
                "a grammar can't be a part of another one",
            ));
        }
    })
}

/// Checks that a schema keeps the bounds and has only keywords that are obeyed. It may still
/// fail to compile.
///
/// # Errors
/// [`ConstraintError`], with the keyword at fault and its place.
pub fn check_schema(text: &str) -> Result<(), ConstraintError> {
    bounds::schema(text).map(|_| ())
}

/// Returns the expression that matches each of a JSON array's texts.
fn choice(text: &str) -> Result<String, ConstraintError> {
    let choices: Vec<String> = serde_json::from_str(text)
        .map_err(|_| ConstraintError::refused("the choices must be a list of texts"))?;
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(ConstraintError::refused(
            "the choices must be a list of at least one text, none of them empty",
        ));
    }
    bounds::values(choices.len())?;
    Ok(one_of(choices.iter().map(String::as_str)))
}
