//! Marks of one vocabulary, kept for the next constraint.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Vocabulary, mark::Mark};

/// Most marks whose masks are kept. A model's template has two to four. The masks of one take as
/// many bits as the vocabulary has tokens, for each byte of the mark.
const MOST_MARKS: usize = 8;

/// Marks around free text; used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<Vec<Arc<Mark>>>);

impl Marks {
    /// Returns true if these marks are kept.
    pub fn know<'a>(&self, mut texts: impl Iterator<Item = &'a str>) -> bool {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        texts.all(|text| marks.iter().any(|mark| mark.is(text)))
    }

    /// Returns the mark of a text; `None` if it has no bytes. Constraints with the same mark share
    /// its masks, each of which takes a look at every token.
    pub fn of(&self, text: &str, vocabulary: &Vocabulary) -> Option<Arc<Mark>> {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = marks.iter().position(|mark| mark.is(text));
        let mark = match known {
            Some(at) => marks.remove(at),
            None => Arc::new(Mark::new(text, vocabulary)?),
        };
        if marks.len() == MOST_MARKS {
            marks.remove(0);
        }
        marks.push(mark.clone());
        Some(mark)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lockstep_text::Tokenizer;

    use super::*;

    #[test]
    fn marks_are_shared_and_few_are_kept() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lockstep-demo-7m");
        let tokenizer = Tokenizer::load(&folder).expect("it has a tokenizer");
        let vocabulary = Vocabulary::new(&tokenizer, 4096, &[0]).expect("it has an end");
        let marks = Marks::default();
        let mark = |text: &str| marks.of(text, &vocabulary).expect("it has bytes");
        let first = mark("</think>");
        assert!(marks.of("", &vocabulary).is_none());
        for number in 0..2 * MOST_MARKS {
            assert!(!Arc::ptr_eq(&first, &mark(&format!("</{number}>"))));
            // What is used often stays.
            assert!(Arc::ptr_eq(&first, &mark("</think>")));
        }
        assert_eq!(marks.0.lock().map_or(0, |marks| marks.len()), MOST_MARKS);
        for number in 0..MOST_MARKS {
            mark(&format!("</{number}>"));
        }
        assert!(!Arc::ptr_eq(&first, &mark("</think>")));
    }
}
