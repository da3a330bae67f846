//! Compiled constraints, kept for the next request.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use lockstep_types::constraint::{Constraint, ConstraintKind};

use crate::{
    Cancel, ConstraintError, Lookahead, Matcher, Vocabulary,
    compile::{Compiled, free_text},
    marks::Marks,
    matcher::FreeText,
    walk::Reach,
    watch::Watch,
};

/// Most constraints that are kept. One takes up to some MiB.
const KEPT: usize = 64;

/// Compiles constraints, and keeps those that were used last.
pub struct Compiler {
    vocabulary: Arc<Vocabulary>,
    marks: Marks,
    watch: Arc<Watch>,
    /// Held while a constraint is compiled for its request.
    turn: Mutex<()>,
    /// Compiled parts, by their constraints without what comes before; used last at the end.
    kept: Mutex<Vec<(Constraint, Arc<Mutex<Compiled>>)>>,
    /// Matchers whose constraint was compiled for them, and those whose constraint was kept.
    made: [AtomicU64; 2],
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler")
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

impl Compiler {
    /// Makes a compiler for a model's vocabulary.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            vocabulary,
            marks: Marks::default(),
            watch: Arc::default(),
            turn: Mutex::default(),
            kept: Mutex::new(Vec::with_capacity(KEPT)),
            made: Default::default(),
        }
    }

    /// Returns true if a constraint was compiled before, and is kept.
    pub fn knows(&self, constraint: &Constraint) -> bool {
        let after = constraint.after.iter();
        let marks = after.flat_map(|after| after.open.iter().chain([&after.close]));
        let is_kept = || is_free(constraint) || self.find(constraint).is_some();
        self.marks.know(marks.map(|mark| &**mark)) && is_kept()
    }

    /// Compiles a constraint and follows it for some hundred tokens. It blocks the calling thread
    /// for as long as that takes; another thread can cancel it.
    ///
    /// # Errors
    /// [`ConstraintError`].
    pub fn check(&self, constraint: &Constraint, cancel: &Cancel) -> Result<(), ConstraintError> {
        self.check_within(constraint, cancel, u64::MAX)
    }

    /// Checks a constraint as [`Self::check`] does, and refuses one that takes more work than
    /// `most_work`. A constraint takes the same work on every machine with the same vocabulary. A
    /// unit of it takes a few microseconds at most.
    ///
    /// # Errors
    /// [`ConstraintError`], of which [`ConstraintError::Heavy`] says that it takes more.
    pub fn check_within(
        &self,
        constraint: &Constraint,
        cancel: &Cancel,
        most_work: u64,
    ) -> Result<(), ConstraintError> {
        self.before(constraint)?;
        match self.work(constraint) {
            Some(work) if work > most_work => return Err(ConstraintError::Heavy),
            Some(_) => return Ok(()),
            None => {}
        }
        let reach = Reach::Walk(most_work);
        if let Some(compiled) = Compiled::new(constraint, &self.vocabulary, cancel, reach)? {
            self.keep(constraint, compiled);
        }
        Ok(())
    }

    /// Returns the work that a constraint took; `None` if it is not kept.
    pub fn work(&self, constraint: &Constraint) -> Option<u64> {
        if is_free(constraint) {
            return Some(0);
        }
        let compiled = self.find(constraint)?;
        let compiled = compiled.lock().unwrap_or_else(PoisonError::into_inner);
        Some(compiled.work())
    }

    /// Makes the matcher of a request whose constraint was checked, by this compiler or another
    /// of the same vocabulary.
    ///
    /// # Errors
    /// [`ConstraintError`] if it was not, and does not compile.
    pub fn matcher(&self, constraint: &Constraint) -> Result<Matcher, ConstraintError> {
        let compiled = match self.known(constraint) {
            Some(compiled) => Some(compiled),
            None => self.compile(constraint)?,
        };
        self.start(constraint, compiled.as_deref())
    }

    /// Makes the second state of a request whose [`Self::matcher`] was made, for drafts. Returns
    /// `None` if its constraint is no longer kept: drafts are not worth compiling it again.
    pub fn lookahead(&self, constraint: &Constraint) -> Option<Lookahead> {
        let compiled = self.find(constraint);
        if compiled.is_none() && !is_free(constraint) {
            return None;
        }
        let started = self.start(constraint, compiled.as_deref()).ok()?;
        Some(Lookahead::new(started.for_drafts()))
    }

    fn start(
        &self,
        constraint: &Constraint,
        compiled: Option<&Mutex<Compiled>>,
    ) -> Result<Matcher, ConstraintError> {
        let before = self.before(constraint)?;
        let grammar = compiled.map(|compiled| {
            let compiled = compiled.lock().unwrap_or_else(PoisonError::into_inner);
            compiled.grammar()
        });
        let matcher = Matcher::new(grammar, self.vocabulary.clone(), before);
        Ok(matcher.watched(self.watch.clone()))
    }

    fn before(&self, constraint: &Constraint) -> Result<Option<FreeText>, ConstraintError> {
        let after = constraint.after.as_ref();
        let before = after.map(|after| free_text(after, &self.vocabulary, &self.marks));
        before.transpose()
    }

    /// Returns how many matchers were made since the last call: from a constraint that was
    /// compiled for it, and from one that was kept. Lookaheads do not count.
    pub fn take_made(&self) -> [u64; 2] {
        let made = self.made.each_ref();
        made.map(|count| count.swap(0, Ordering::Relaxed))
    }

    /// Compiles a constraint, once for all choices of a request.
    fn compile(
        &self,
        constraint: &Constraint,
    ) -> Result<Option<Arc<Mutex<Compiled>>>, ConstraintError> {
        if is_free(constraint) {
            return Ok(None);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = self.known(constraint) {
            return Ok(Some(compiled));
        }
        self.made[0].fetch_add(1, Ordering::Relaxed);
        let (cancel, reach) = (Cancel::default(), Reach::FirstMask);
        let compiled = Compiled::new(constraint, &self.vocabulary, &cancel, reach)?;
        Ok(compiled.map(|compiled| self.keep(constraint, compiled)))
    }

    /// Finds the constraint of a matcher.
    fn known(&self, constraint: &Constraint) -> Option<Arc<Mutex<Compiled>>> {
        let found = self.find(constraint)?;
        self.made[1].fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    fn find(&self, constraint: &Constraint) -> Option<Arc<Mutex<Compiled>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept
            .iter()
            .position(|(known, _)| is_same(known, constraint))?;
        let entry = kept.remove(at);
        let found = entry.1.clone();
        kept.push(entry);
        Some(found)
    }

    fn keep(&self, constraint: &Constraint, compiled: Compiled) -> Arc<Mutex<Compiled>> {
        let compiled = Arc::new(Mutex::new(compiled));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = kept.iter().find(|(known, _)| is_same(known, constraint)) {
            return known.clone();
        }
        if kept.len() == KEPT {
            kept.remove(0);
        }
        let key = Constraint {
            after: None,
            ..constraint.clone()
        };
        kept.push((key, compiled.clone()));
        compiled
    }
}

/// Returns true if anything may follow the free text, so that there is nothing to compile.
fn is_free(constraint: &Constraint) -> bool {
    constraint.kind == ConstraintKind::Anything
}

/// Returns true if two constraints have one compiled part.
fn is_same(one: &Constraint, other: &Constraint) -> bool {
    let part = |own: &Constraint| (own.kind, own.whitespace);
    part(one) == part(other) && one.text == other.text
}
