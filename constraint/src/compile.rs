//! From a constraint to llguidance's grammar.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use llguidance::api::TopLevelGrammar;
use lockstep_text::lark::one_of;
use lockstep_types::constraint::{Constraint, ConstraintKind, Reasoning};

use crate::{
    Cancel, ConstraintError, Matcher, Vocabulary, bounds,
    json::json_options,
    marks::Marks,
    matcher::FreeText,
    tags,
    walk::{self, Reach},
};

/// Longest time for a constraint to be compiled where it is checked, so that the steps of a lead,
/// which compiles it again, do not wait for it long.
const LONGEST: Duration = Duration::from_secs(1);

/// Stack of the thread that compiles, of which only the touched part takes memory.
const STACK: usize = 256 << 20;

/// The compiled part of a constraint, from which each request's matcher is cloned. What comes
/// before that part is none of its business.
pub(crate) struct Compiled {
    grammar: llguidance::Matcher,
    /// Work of compiling and following it, which is the same on every machine.
    work: u64,
}

impl Compiled {
    /// Compiles a constraint, and follows it as far as `reach` says. Returns `None` where anything
    /// may follow the free text.
    ///
    /// # Errors
    /// [`ConstraintError`].
    pub fn new(
        constraint: &Constraint,
        vocabulary: &Arc<Vocabulary>,
        cancel: &Cancel,
        reach: Reach,
    ) -> Result<Option<Self>, ConstraintError> {
        if constraint.kind == ConstraintKind::Anything {
            return Ok(None);
        }
        // Compiling a schema takes a frame for each level, references included.
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK);
            let compile = || Self::compile(constraint, vocabulary, cancel, reach);
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
        vocabulary: &Arc<Vocabulary>,
        cancel: &Cancel,
        reach: Reach,
    ) -> Result<Option<Self>, ConstraintError> {
        let begun = Instant::now();
        let Some(grammar) = grammar(constraint, vocabulary)? else {
            return Ok(None);
        };
        let parser = vocabulary.factory().create_parser(grammar);
        let parser =
            parser.map_err(|error| ConstraintError::told(constraint.kind, &error.to_string()))?;
        let compiling = parser.parser_stats().lexer_cost;
        let grammar = llguidance::Matcher::new(Ok(parser));
        if let Some(error) = grammar.get_error() {
            return Err(ConstraintError::told(constraint.kind, &error));
        }
        let reach = match reach {
            Reach::FirstMask => reach,
            // Time decides where work does not.
            Reach::Walk(u64::MAX) if begun.elapsed() > LONGEST => {
                return Err(ConstraintError::Slow);
            }
            Reach::Walk(most_work) => {
                let rest = most_work.checked_sub(compiling);
                Reach::Walk(rest.ok_or(ConstraintError::Heavy)?)
            }
        };
        // It can be cancelled.
        let walked = grammar.deep_clone().into_cancellable();
        let walked = Matcher::new(Some(walked), vocabulary.clone(), None);
        let walked = walk::walk(walked, cancel, reach);
        let walked = walked.map_err(|error| error.of(constraint.kind))?;
        Ok(Some(Self {
            grammar,
            work: compiling.saturating_add(walked),
        }))
    }

    /// Returns the work of compiling and following it.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Makes the grammar of a request, which shares nothing that is locked.
    pub fn grammar(&self) -> llguidance::Matcher {
        let mut grammar = self.grammar.deep_clone();
        // Only a mask sets the fuel of the tokens after it. One that fails is told of later.
        let _ = grammar.compute_mask();
        grammar
    }
}

/// Returns the free text before a constrained part.
///
/// # Errors
/// [`ConstraintError`] for a mark that is empty, or that no tokens spell where it has to come.
pub(crate) fn free_text(
    after: &Reasoning,
    vocabulary: &Vocabulary,
    marks: &Marks,
) -> Result<FreeText, ConstraintError> {
    let mark = |text: &str, which: &str, spelled: bool| {
        let mark = marks.of(text, vocabulary).ok_or_else(|| {
            ConstraintError::refused(format!("the mark that {which} the reasoning is empty"))
        })?;
        match !spelled || mark.can_be_spelled(vocabulary) {
            true => Ok(mark),
            false => Err(ConstraintError::refused(format!(
                "the mark '{text}', that {which} this model's reasoning, can't be spelled by its \
                 tokens; turn the reasoning off, by the chat template or by \
                 `--reasoning-parser none`"
            ))),
        }
    };
    let open = after.open.as_deref();
    Ok(FreeText {
        open: open.map(|open| mark(open, "begins", true)).transpose()?,
        close: mark(&after.close, "ends", after.limit.is_some())?,
        limit: after.limit,
        again: after.again,
        breaks: after
            .breaks
            .iter()
            .filter_map(|mark| vocabulary.token(mark.as_bytes()))
            .collect(),
    })
}

/// Returns the grammar of the constrained part; `None` if that is anything.
fn grammar(
    constraint: &Constraint,
    vocabulary: &Vocabulary,
) -> Result<Option<TopLevelGrammar>, ConstraintError> {
    bounds::length(&constraint.text)?;
    Ok(Some(match constraint.kind {
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
        ConstraintKind::Anything => return Ok(None),
    }))
}

/// Returns an expression of a grammar whose words are those of a schema, a regular expression, a
/// list of choices or another grammar.
///
/// # Errors
/// [`ConstraintError`] for a text that is none, and for a structural tag, whose grammar depends on
/// the vocabulary.
pub fn expression(kind: ConstraintKind, text: &str) -> Result<String, ConstraintError> {
    bounds::length(text)?;
    Ok(match kind {
        ConstraintKind::JsonSchema => format!("%json {}", bounds::given_schema(text)?),
        ConstraintKind::Regex => {
            let pattern = bounds::whole(text);
            bounds::regex(pattern).map_err(ConstraintError::refused)?;
            format!("/{}/", llguidance::regex_to_lark(pattern, "dw"))
        }
        ConstraintKind::Choice => format!("/{}/", choice(text)?),
        ConstraintKind::Lark => bounds::nested(text)?,
        ConstraintKind::StructuralTag => {
            return Err(ConstraintError::refused(
                "a structural tag can't be a part of a grammar",
            ));
        }
        ConstraintKind::Anything => "/(?s:.*)/".to_owned(),
    })
}

/// Checks that a schema keeps the bounds and has only keywords that are obeyed. It may still
/// fail to compile.
///
/// # Errors
/// [`ConstraintError`], with the keyword at fault and its place.
pub fn check_schema(text: &str) -> Result<(), ConstraintError> {
    bounds::given_schema(text).map(|_| ())
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
