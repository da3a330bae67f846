//! Compiling of constraints before their requests queue, on threads of their own.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockstep_constraint::{Cancel, Compiler, ConstraintError, Vocabulary};
use lockstep_text::Tokenizer;
use lockstep_types::{ModelConfig, constraint::Constraint};
use tokio::sync::Semaphore;

/// Longest time for a constraint to be compiled and followed. Most take milliseconds.
const LONGEST: Duration = Duration::from_secs(2);

/// Longest time for a constraint to wait until others are compiled.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Constraints that are compiled at once. More wait, while known ones do not.
const AT_ONCE: usize = 2;

/// The compiler of a model's constraints. It reads the vocabulary when it is first needed.
#[derive(Debug)]
pub struct Constraints {
    source: Arc<Source>,
    permits: Arc<Semaphore>,
}

#[derive(Debug)]
struct Source {
    tokenizer: Tokenizer,
    width: usize,
    end_tokens: Vec<u32>,
    compiler: OnceLock<Result<Compiler, ConstraintError>>,
}

impl Source {
    fn compiler(&self) -> Result<&Compiler, ConstraintError> {
        let compiler = self.compiler.get_or_init(|| {
            let vocabulary = Vocabulary::new(&self.tokenizer, self.width, &self.end_tokens)?;
            Ok(Compiler::new(Arc::new(vocabulary)))
        });
        compiler.as_ref().map_err(Clone::clone)
    }
}

/// Cancels what is compiled for a client that has left, or for too long.
struct CancelOnDrop(Arc<Cancel>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Constraints {
    /// Makes the compiler for a model.
    pub fn new(tokenizer: &Tokenizer, model: &ModelConfig) -> Self {
        Self {
            source: Arc::new(Source {
                tokenizer: tokenizer.clone(),
                width: model.vocab_size,
                end_tokens: model.eos_token_ids.clone(),
                compiler: OnceLock::new(),
            }),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Checks that a constraint can be followed.
    ///
    /// # Errors
    /// [`ConstraintError`] says why it can't.
    pub async fn check(&self, constraint: Arc<Constraint>) -> Result<(), ConstraintError> {
        let known = self.source.compiler.get();
        if let Some(Ok(compiler)) = known
            && compiler.knows(&constraint)
        {
            return Ok(());
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
        let source = self.source.clone();
        let work = tokio::task::spawn_blocking(move || {
            // The work holds the permit, since it may go on for a while after its time.
            let _permit = permit;
            source.compiler()?.check(&constraint, &cancel)
        });
        let checked = tokio::time::timeout(LONGEST, work).await;
        drop(on_drop);
        match checked {
            Ok(Ok(checked)) => checked,
            Ok(Err(_)) | Err(_) => Err(ConstraintError::Slow),
        }
    }
}
