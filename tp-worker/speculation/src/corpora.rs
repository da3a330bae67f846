//! Texts that clients give a drafter, to draft from while it serves.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use lockstep_types::{
    drafter::{CorpusCommand, CorpusSize, DrafterCommand, DrafterReply, DrafterResult},
    request::{ErrorKind, RequestError},
};

use crate::CommandHandler;

/// Most tokens of all corpora together.
pub const MAX_CORPUS_TOKENS: usize = 10_000_000;

/// Most corpora. Each is looked up in every step of every request.
pub const MAX_CORPORA: usize = 64;

/// The form in which a drafter looks up a given text.
pub trait CorpusIndex: Send + Sync + 'static {
    /// Prepares a text, on a thread that no step waits for.
    fn new(tokens: Vec<u32>) -> Self;
    /// Returns the number of tokens of the text.
    fn tokens(&self) -> usize;
}

/// The texts that a drafter may draft from, each in the form for its look-up. Clones share the
/// texts. Changes take effect with the next step.
#[derive(Debug)]
pub struct Corpora<I> {
    shared: Arc<Shared<I>>,
}

#[derive(Debug)]
struct Shared<I> {
    /// Number of changes so far, so that readers see without a lock that there was none.
    version: AtomicU64,
    corpora: Mutex<BTreeMap<String, Arc<I>>>,
}

impl<I> Default for Corpora<I> {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                version: AtomicU64::new(0),
                corpora: Mutex::default(),
            }),
        }
    }
}

impl<I> Clone for Corpora<I> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

/// Reasons why a corpus was not added or not removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorpusError {
    /// The text is too short to draft from.
    #[error("corpus {name}: {tokens} tokens; give at least 2, so that one follows another")]
    Short {
        /// The corpus.
        name: String,
        /// Number of its tokens.
        tokens: usize,
    },
    /// The text exceeds the room that is left.
    #[error(
        "corpus {name}: {tokens} tokens, but only {left} of {MAX_CORPUS_TOKENS} are left; remove a corpus or give a shorter one"
    )]
    Tokens {
        /// The name of the corpus.
        name: String,
        /// Number of its tokens.
        tokens: usize,
        /// Number of tokens that there is room for.
        left: usize,
    },
    /// There are too many corpora.
    #[error("corpus {name}: there are {MAX_CORPORA} already; remove one, or join some")]
    Corpora {
        /// The corpus.
        name: String,
    },
    /// No corpus has that name.
    #[error("no corpus is called {name}")]
    Unknown {
        /// The name.
        name: String,
    },
}

impl<I: CorpusIndex> Corpora<I> {
    /// Adds a corpus, in place of one of the same name. It takes 8 bytes per token, and is
    /// sorted on the caller's thread, so that no step waits.
    ///
    /// # Errors
    /// [`CorpusError`]; then nothing has changed.
    pub fn insert(&self, name: &str, tokens: Vec<u32>) -> Result<(), CorpusError> {
        self.check(name, tokens.len(), &self.corpora())?;
        let index = Arc::new(I::new(tokens));
        let mut corpora = self.corpora();
        // Other corpora may have been added while this one was sorted.
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

    /// Returns the names and sizes of all corpora, by name.
    pub fn list(&self) -> Vec<CorpusSize> {
        let corpora = self.corpora();
        let corpus = |(name, index): (&String, &Arc<I>)| CorpusSize {
            name: name.clone(),
            tokens: index.tokens() as u64,
        };
        corpora.iter().map(corpus).collect()
    }

    fn check(
        &self,
        name: &str,
        tokens: usize,
        corpora: &BTreeMap<String, Arc<I>>,
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

    fn corpora(&self) -> MutexGuard<'_, BTreeMap<String, Arc<I>>> {
        // A map is whole even if a holder of the lock has panicked.
        let lock = self.shared.corpora.lock();
        lock.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: CorpusIndex> CommandHandler for Corpora<I> {
    fn handle(&self, command: DrafterCommand) -> DrafterResult {
        let DrafterCommand::Corpora(command) = command;
        let changed = match command {
            CorpusCommand::List => Ok(()),
            CorpusCommand::Add { name, token_ids } => self.insert(&name, token_ids),
            CorpusCommand::Remove { name } => self.remove(&name),
        };
        changed.map_err(|error| RequestError::new(ErrorKind::Invalid, error.to_string()))?;
        Ok(DrafterReply::Corpora(self.list()))
    }
}

/// A reader's view of the corpora. It takes no lock while nothing changes.
#[derive(Debug)]
pub struct CorporaView<I> {
    corpora: Corpora<I>,
    version: u64,
    indices: Vec<Arc<I>>,
}

impl<I: CorpusIndex> CorporaView<I> {
    /// Makes a view that has not looked yet.
    pub fn new(corpora: Corpora<I>) -> Self {
        Self {
            corpora,
            // A version that is never counted, so that the first look takes in all corpora.
            version: u64::MAX,
            indices: Vec::new(),
        }
    }

    /// Returns the corpora of the view.
    pub fn corpora(&self) -> &Corpora<I> {
        &self.corpora
    }

    /// Returns the present corpora, by name.
    pub fn indices(&mut self) -> &[Arc<I>] {
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
    use std::sync::LazyLock;

    use super::*;

    /// A text without an index.
    #[derive(Debug)]
    struct Plain(Vec<u32>);

    impl CorpusIndex for Plain {
        fn new(tokens: Vec<u32>) -> Self {
            Self(tokens)
        }

        fn tokens(&self) -> usize {
            self.0.len()
        }
    }

    #[test]
    fn corpora_come_and_go_and_views_follow() {
        let corpora = Corpora::<Plain>::default();
        let mut view = CorporaView::new(corpora.clone());
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

    /// So large that two of them are too many.
    #[test]
    fn tokens_of_all_corpora_are_limited_together() {
        let corpora = Corpora::<Plain>::default();
        let more = MAX_CORPUS_TOKENS / 2 + 1;
        corpora.insert("a", vec![1; more]).unwrap();
        let error = corpora.insert("b", vec![1; more]).unwrap_err();
        let left = MAX_CORPUS_TOKENS - more;
        assert!(matches!(error, CorpusError::Tokens { left: l, .. } if l == left));
        corpora.insert("b", vec![1; left]).unwrap();
        // One in place of another has its room too.
        corpora.insert("a", vec![1; more - 1]).unwrap();
        assert_eq!(corpora.list().len(), 2);
    }

    /// While one of three tokens is sorted, as many others come as there may be.
    struct Slow;

    static SLOW: LazyLock<Corpora<Slow>> = LazyLock::new(Corpora::default);

    impl CorpusIndex for Slow {
        fn new(tokens: Vec<u32>) -> Self {
            if tokens.len() == 3 {
                for n in 0..MAX_CORPORA {
                    SLOW.insert(&n.to_string(), vec![1, 2]).unwrap();
                }
            }
            Self
        }

        fn tokens(&self) -> usize {
            2
        }
    }

    #[test]
    fn limits_hold_with_what_came_meanwhile() {
        let late = SLOW.insert("late", vec![1, 2, 3]);
        assert!(matches!(late, Err(CorpusError::Corpora { .. })), "{late:?}");
        assert_eq!(SLOW.list().len(), MAX_CORPORA);
    }

    #[test]
    fn limits_are_errors_that_change_nothing() {
        let corpora = Corpora::<Plain>::default();
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
        // A corpus in place of another does not add to the number.
        corpora.insert("3", vec![1, 2, 3]).unwrap();
        assert_eq!(corpora.list().len(), MAX_CORPORA);
    }
}
