//! Words that travel with an operation.

/// Most words that a rank may attach to an operation.
pub const ATTACHED_WORDS: usize = 64;

/// Words that one rank attaches to one transfer; there may be none.
///
/// Public only for [`crate::endpoint::Endpoint`]: the module is private.
#[derive(Debug, Clone, Copy)]
pub struct Attachment {
    shape: Shape,
    words: [u32; ATTACHED_WORDS],
}

/// Number of words, and number of words that are equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    shared: u32,
    count: u32,
}

impl Shape {
    /// Shape of no words.
    pub const NONE: Self = Self {
        shared: 0,
        count: 0,
    };

    /// Returns the number of words.
    pub fn count(self) -> usize {
        self.count as usize
    }

    /// Encodes for headers; 0 stands for no words.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.count) | u64::from(self.shared) << 32
    }

    /// Decodes what [`Self::to_word`] encoded. A word that no rank sends becomes some shape
    /// too. It differs from the shape of the other ranks, or the words with it do.
    pub(crate) fn from_word(word: u64) -> Self {
        let count = (word as u32).min(ATTACHED_WORDS as u32);
        let shared = ((word >> 32) as u32).min(count);
        Self { shared, count }
    }
}

impl Attachment {
    /// An attachment without words.
    pub const NONE: Self = Self {
        shape: Shape::NONE,
        words: [0; ATTACHED_WORDS],
    };

    /// Makes an attachment of the words `word(0)`, `word(1)`, … in a shape.
    pub(crate) fn new(shape: Shape, word: impl FnMut(usize) -> u32) -> Self {
        let mut words = [0; ATTACHED_WORDS];
        let taken = words[..shape.count()].iter_mut();
        taken.zip((0..).map(word)).for_each(|(to, from)| *to = from);
        Self { shape, words }
    }

    /// Makes an attachment of `words`. The first `shared` of them are equal on all ranks.
    /// `None` unless there are 1 to [`ATTACHED_WORDS`] words, and at least `shared`.
    pub(crate) fn of(shared: usize, words: &[u32]) -> Option<Self> {
        let count = words.len();
        let fits = (1..=ATTACHED_WORDS).contains(&count) && shared <= count;
        let shape = Shape {
            shared: shared as u32,
            count: count as u32,
        };
        fits.then(|| Self::new(shape, |at| words[at]))
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn is_none(&self) -> bool {
        self.shape == Shape::NONE
    }

    /// Returns the words that are equal on all ranks.
    pub(crate) fn shared(&self) -> &[u32] {
        &self.words[..self.shape.shared as usize]
    }

    pub(crate) fn words(&self) -> &[u32] {
        &self.words[..self.shape.count()]
    }

    /// Returns true if both have words, and differ in the words that must be equal.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        !self.is_none() && !other.is_none() && !self.agrees(other)
    }

    /// Returns true if two ranks may attach these to the same operation.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        self.shape == other.shape && self.shared() == other.shared()
    }
}

/// Attachments of one rank in one group.
pub(crate) struct Attachments {
    /// Words that the next transfer carries.
    pub next: Attachment,
    /// All ranks' words, in rank order, of the last transfer that carried words.
    all: Vec<u32>,
}

impl Attachments {
    /// Makes attachments in a group of `size`.
    pub fn new(size: usize) -> Self {
        Self {
            next: Attachment::NONE,
            all: Vec::with_capacity(size * ATTACHED_WORDS),
        }
    }

    /// Notes that `next` has travelled. `of(rank)` returns each rank's attachment.
    pub fn travelled(&mut self, size: usize, of: impl Fn(usize) -> Attachment) {
        self.all.clear();
        for rank in 0..size {
            self.all.extend_from_slice(of(rank).words());
        }
        self.next = Attachment::NONE;
    }

    /// Copies the words that have travelled: see [`crate::Collective::attached`].
    pub fn copy_to(&self, all: &mut [u32]) -> bool {
        let arrived = self.next.is_none() && !self.all.is_empty();
        if arrived {
            all.copy_from_slice(&self.all);
        }
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::{ATTACHED_WORDS, Attachment, Shape};

    #[test]
    fn shapes_survive_their_encoding() {
        for count in 1..=ATTACHED_WORDS {
            for shared in 0..=count {
                let words = vec![7; count];
                let shape = Attachment::of(shared, &words).expect("it fits").shape();
                assert_eq!(Shape::from_word(shape.to_word()), shape);
                assert_ne!(shape.to_word(), Shape::NONE.to_word());
            }
        }
        for word in [u64::MAX, 65, 1 << 32, 5 << 32 | 4] {
            let Shape { shared, count } = Shape::from_word(word);
            assert!(shared <= count && count as usize <= ATTACHED_WORDS);
        }
    }
}
