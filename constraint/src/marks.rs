//! Marks of one vocabulary, kept for the next constraint.

use std::sync::{Arc, Mutex, PoisonError};

use crate::mark::Mark;

/// Most marks whose masks are kept. A model's template has one or two. The masks of one take as
/// many bits as the vocabulary has tokens, for each byte of the mark.
const MOST_MARKS: usize = 4;

/// Marks that end free text; used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<Vec<Arc<Mark>>>);

impl Marks {
    /// Returns the mark of a text; `None` if it has no bytes. Constraints with the same mark share
    /// its masks, each of which takes a look at every token.
    pub fn of(&self, text: &str) -> Option<Arc<Mark>> {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = marks.iter().position(|mark| mark.is(text));
        let mark = match known {
            Some(at) => marks.remove(at),
            None => Arc::new(Mark::new(text)?),
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
    use super::*;

    #[test]
    fn marks_are_shared_and_few_are_kept() {
        let marks = Marks::default();
        let mark = |text: &str| marks.of(text).expect("it has bytes");
        let first = mark("</think>");
        assert!(marks.of("").is_none());
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
