//! Texts that were given to draft from.

mod index;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

pub(super) use index::Index;

/// Tokens of all corpora together, at most.
pub const MAX_CORPUS_TOKENS: usize = 10_000_000;

/// Corpora at most: each is looked up in every step of every request.
pub const MAX_CORPORA: usize = 64;

/// A handle on the texts that NGRAM drafts from beside the served ones. Clones
/// share them; changes take effect with the next step.
#[derive(Debug, Clone, Default)]
pub struct Corpora {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Changes with every change, so that readers need no lock to see that
    /// there was none.
    version: AtomicU64,
    corpora: Mutex<BTreeMap<String, Arc<Index>>>,
}

/// A corpus, for a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// What it was called.
    pub name: String,
    /// Its tokens.
    pub tokens: usize,
}

/// Why a corpus was not taken, or not removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorpusError {
    /// Nothing to draft from.
    #[error("corpus {name}: {tokens} tokens; give at least 2, so that one follows another")]
    Short {
        /// The corpus.
        name: String,
        /// What it has.
        tokens: usize,
    },
    /// No room.
    #[error(
        "corpus {name}: {tokens} tokens, but only {left} of {MAX_CORPUS_TOKENS} are left; remove a corpus or give a shorter one"
    )]
    Tokens {
        /// The corpus.
        name: String,
        /// What it has.
        tokens: usize,
        /// What there is room for.
        left: usize,
    },
    /// Too many.
    #[error("corpus {name}: there are {MAX_CORPORA} already; remove one, or join some")]
    Corpora {
        /// The corpus.
        name: String,
    },
    /// No corpus of that name.
    #[error("no corpus is called {name}")]
    Unknown {
        /// The name.
        name: String,
    },
}

impl Corpora {
    /// Adds a corpus, in place of one of the same name. It takes 8 bytes per
    /// token, and is sorted on the caller's thread: no step waits for that.
    ///
    /// # Errors
    /// [`CorpusError`]; nothing has changed then.
    pub fn insert(&self, name: &str, tokens: Vec<u32>) -> Result<(), CorpusError> {
        self.check(name, tokens.len(), &self.corpora())?;
        let index = Arc::new(Index::new(tokens));
        let mut corpora = self.corpora();
        // Others may have come while this one was sorted.
        self.check(name, index.tokens(), &corpora)?;
        corpora.insert(name.to_owned(), index);
        self.shared.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Forgets a corpus.
    ///
    /// # Errors
    /// [`CorpusError::Unknown`].
    pub fn remove(&self, name: &str) -> Result<(), CorpusError> {
        let mut corpora = self.corpora();
        if corpora.remove(name).is_none() {
            let name = name.to_owned();
            return Err(CorpusError::Unknown { name });
        }
        self.shared.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<Corpus> {
        let corpora = self.corpora();
        let corpus = |(name, index): (&String, &Arc<Index>)| Corpus {
            name: name.clone(),
            tokens: index.tokens(),
        };
        corpora.iter().map(corpus).collect()
    }

    fn check(
        &self,
        name: &str,
        tokens: usize,
        corpora: &BTreeMap<String, Arc<Index>>,
    ) -> Result<(), CorpusError> {
        let name = || name.to_owned();
        let others = corpora.iter().filter(|(other, _)| **other != name());
        let (count, used) = others.fold((0, 0), |(count, used), (_, index)| {
            (count + 1, used + index.tokens())
        });
        let left = MAX_CORPUS_TOKENS.saturating_sub(used);
        if tokens < 2 {
            return Err(CorpusError::Short {
                name: name(),
                tokens,
            });
        }
        if tokens > left {
            return Err(CorpusError::Tokens {
                name: name(),
                tokens,
                left,
            });
        }
        if count >= MAX_CORPORA {
            return Err(CorpusError::Corpora { name: name() });
        }
        Ok(())
    }

    fn corpora(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Index>>> {
        // A map is whole even where a holder of the lock has panicked.
        let lock = self.shared.corpora.lock();
        lock.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader's view of the corpora: no lock is taken while nothing changes.
#[derive(Debug)]
pub(super) struct View {
    corpora: Corpora,
    version: u64,
    indices: Vec<Arc<Index>>,
}

impl View {
    pub(super) fn new(corpora: Corpora) -> Self {
        // No version that was ever counted: the first look takes everything in.
        let (version, indices) = (u64::MAX, Vec::new());
        Self {
            corpora,
            version,
            indices,
        }
    }

    /// The handle.
    pub(super) fn corpora(&self) -> &Corpora {
        &self.corpora
    }

    /// What there is now, by name.
    pub(super) fn indices(&mut self) -> &[Arc<Index>] {
        let version = self.corpora.shared.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.indices.clear();
            self.indices
                .extend(self.corpora.corpora().values().cloned());
        }
        &self.indices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_come_and_go_and_views_follow() {
        let corpora = Corpora::default();
        let mut view = View::new(corpora.clone());
        assert!(view.indices().is_empty());
        corpora.insert("b", vec![1, 2, 3]).unwrap();
        corpora.insert("a", vec![4, 5]).unwrap();
        corpora.insert("b", vec![1; 7]).unwrap();
        let tokens: Vec<usize> = view.indices().iter().map(|index| index.tokens()).collect();
        assert_eq!(tokens, [2, 7]);
        let names: Vec<_> = corpora
            .list()
            .into_iter()
            .map(|c| (c.name, c.tokens))
            .collect();
        assert_eq!(names, [("a".to_owned(), 2), ("b".to_owned(), 7)]);
        corpora.remove("a").unwrap();
        assert_eq!(view.indices().len(), 1);
        let gone = corpora.remove("a").unwrap_err();
        assert_eq!(gone.to_string(), "no corpus is called a");
    }

    #[test]
    fn limits_are_errors_that_change_nothing() {
        let corpora = Corpora::default();
        let short = corpora.insert("x", vec![1]).unwrap_err();
        assert!(matches!(short, CorpusError::Short { tokens: 1, .. }));
        let long = corpora.insert("x", vec![1; MAX_CORPUS_TOKENS + 1]);
        let left = MAX_CORPUS_TOKENS;
        assert!(matches!(long, Err(CorpusError::Tokens { left: l, .. }) if l == left));
        for n in 0..MAX_CORPORA {
            corpora.insert(&n.to_string(), vec![1, 2]).unwrap();
        }
        let many = corpora.insert("x", vec![1, 2]).unwrap_err();
        assert_eq!(
            many,
            CorpusError::Corpora {
                name: "x".to_owned()
            }
        );
        // One in place of another is no more than before.
        corpora.insert("3", vec![1, 2, 3]).unwrap();
        assert_eq!(corpora.list().len(), MAX_CORPORA);
    }
}
