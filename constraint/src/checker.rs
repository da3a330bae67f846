//! Compiling of constraints before their requests queue, on threads of their own.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use lockstep_types::constraint::Constraint;
use tokio::sync::Semaphore;

use crate::{Cancel, Compiler, ConstraintError, Vocabulary};

/// Longest time for a constraint to be compiled and followed. Most take milliseconds.
const LONGEST: Duration = Duration::from_secs(2);

/// Longest time for a constraint to wait until others are compiled.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Most work of a constraint that nobody asked for: half a second at most on an ordinary machine, so
/// that time decides nothing on one that is a few times slower. A schema of 1,500 texts takes a third.
const MOST_LIGHT_WORK: u64 = 150_000;

/// Constraints that are compiled at once. More wait, while known ones do not.
const AT_ONCE: usize = 2;

/// The gate that every constraint passes before its request queues. It is the same for all
/// services, so that all refuse the same constraints. It reads the vocabulary when it is first
/// needed.
#[derive(Debug)]
pub struct Checker {
    source: Arc<Source>,
    permits: Arc<Semaphore>,
}

/// Reads a vocabulary.
type Read = dyn Fn() -> Result<Vocabulary, ConstraintError> + Send + Sync;

struct Source {
    read: Box<Read>,
    compiler: OnceLock<Result<Compiler, ConstraintError>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("compiler", &self.compiler)
            .finish_non_exhaustive()
    }
}

impl Source {
    fn compiler(&self) -> Result<&Compiler, ConstraintError> {
        let compiler = self.compiler.get_or_init(|| {
            let vocabulary = (self.read)()?;
            Ok(Compiler::new(Arc::new(vocabulary)))
        });
        compiler.as_ref().map_err(Clone::clone)
    }
}

/// The outcome of a check, and its cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Says why the constraint can't be followed, if that is so.
    pub result: Result<(), ConstraintError>,
    /// Time of compiling; `None` if the constraint had been compiled before, or its turn did not
    /// come.
    pub compiled: Option<Duration>,
}

/// Cancels what is compiled for a client that has left, or for too long.
struct CancelOnDrop(Arc<Cancel>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Checker {
    /// Makes the gate of a model whose vocabulary `read` returns. It is called once, on a thread
    /// that may block.
    pub fn new(
        read: impl Fn() -> Result<Vocabulary, ConstraintError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            source: Arc::new(Source {
                read: Box::new(read),
                compiler: OnceLock::new(),
            }),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Checks that a constraint can be followed.
    pub async fn check(&self, constraint: Arc<Constraint>) -> Checked {
        self.check_within(constraint, u64::MAX).await
    }

    /// Checks a constraint that nobody asked for, and refuses it as [`ConstraintError::Heavy`] if
    /// it takes much work. That is counted, so all machines refuse the same constraints.
    pub async fn check_light(&self, constraint: Arc<Constraint>) -> Checked {
        self.check_within(constraint, MOST_LIGHT_WORK).await
    }

    async fn check_within(&self, constraint: Arc<Constraint>, most_work: u64) -> Checked {
        let mut compiled = None;
        let result = self.find_or_compile(constraint, most_work, &mut compiled);
        let result = result.await;
        Checked { result, compiled }
    }

    async fn find_or_compile(
        &self,
        constraint: Arc<Constraint>,
        most_work: u64,
        compiled: &mut Option<Duration>,
    ) -> Result<(), ConstraintError> {
        let known = self.source.compiler.get();
        if let Some(Ok(compiler)) = known
            && compiler.knows(&constraint)
            && let Some(work) = compiler.work(&constraint)
        {
            return match work > most_work {
                true => Err(ConstraintError::Heavy),
                false => Ok(()),
            };
        }
        let permit = tokio::time::timeout(LONGEST_WAIT, self.permits.clone().acquire_owned());
        let Ok(Ok(permit)) = permit.await else {
            return Err(ConstraintError::Busy);
        };
        if known.is_none() {
            let source = self.source.clone();
            let read = tokio::task::spawn_blocking(move || source.compiler().map(|_| ()));
            read.await.map_err(|_| ConstraintError::Slow)??;
        }
        let cancel = Arc::<Cancel>::default();
        let on_drop = CancelOnDrop(cancel.clone());
        let (source, begun) = (self.source.clone(), Instant::now());
        let work = tokio::task::spawn_blocking(move || {
            // The work holds the permit, since it may go on for a while after its time.
            let _permit = permit;
            let compiler = source.compiler()?;
            compiler.check_within(&constraint, &cancel, most_work)
        });
        let checked = tokio::time::timeout(LONGEST, work).await;
        drop(on_drop);
        *compiled = Some(begun.elapsed());
        match checked {
            Ok(Ok(checked)) => checked,
            Ok(Err(_)) | Err(_) => Err(ConstraintError::Slow),
        }
    }
}
