//! The head of a frame: a header, and the attached words. The payload follows.

use crate::attachment::{Attachment, Shape};
use crate::{ATTACHED_WORDS, Operation};

/// Bytes of a header: the operation, the shape of the attached words, and the payload's number
/// of elements.
pub(crate) const HEADER: usize = (Operation::WORDS + 2) * 8;

/// Bytes of a header with the most words.
pub(crate) const LONGEST: usize = HEADER + ATTACHED_WORDS * size_of::<u32>();

/// Content of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub operation: Operation,
    pub shape: Shape,
    /// Number of elements of the payload.
    pub elements: u64,
}

impl Header {
    pub fn encode(self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let rest = [self.shape.to_word(), self.elements];
        let words = self.operation.to_words().into_iter().chain(rest);
        for (bytes, word) in header.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        header
    }

    /// Decodes what [`Self::encode`] encoded.
    pub fn decode(header: &[u8; HEADER]) -> Self {
        let (words, _) = header.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        Self {
            operation: Operation::from_words(std::array::from_fn(word)),
            shape: Shape::from_word(word(Operation::WORDS)),
            elements: word(Operation::WORDS + 1),
        }
    }
}

/// Returns the bytes from the start of a frame to its payload.
pub(crate) fn payload_at(shape: Shape) -> usize {
    HEADER + shape.count() * size_of::<u32>()
}

/// Writes the bytes of attached words, which follow the header.
pub(crate) fn encode_words(attachment: &Attachment, bytes: &mut [u8]) {
    let words = attachment.words().iter();
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Decodes what [`encode_words`] wrote.
pub(crate) fn decode_words(shape: Shape, bytes: &[u8]) -> Attachment {
    let (words, _) = bytes.as_chunks::<4>();
    Attachment::new(shape, |word| u32::from_le_bytes(words[word]))
}

#[cfg(test)]
mod tests {
    use super::{HEADER, Header, LONGEST, decode_words, encode_words, payload_at};
    use crate::attachment::{Attachment, Shape};
    use crate::{Kind, Operation};

    #[test]
    fn decodes_what_it_encodes() {
        let words: Vec<u32> = (0..64).map(|word| word << 26 | word).collect();
        for kind in Kind::ALL {
            for count in [0, 1, 45, 64] {
                let attachment = Attachment::of(count / 2, &words[..count]);
                let attachment = attachment.unwrap_or(Attachment::NONE);
                let header = Header {
                    operation: Operation {
                        group: 1 << 50,
                        sequence: 1 << 40,
                        kind,
                        length: 7,
                        detail: u64::MAX,
                    },
                    shape: attachment.shape(),
                    elements: 99,
                };
                assert_eq!(Header::decode(&header.encode()), header);
                let mut bytes = [0; LONGEST];
                encode_words(&attachment, &mut bytes[HEADER..]);
                assert!(
                    bytes[payload_at(header.shape)..]
                        .iter()
                        .all(|byte| *byte == 0)
                );
                let decoded = decode_words(header.shape, &bytes[HEADER..]);
                assert_eq!(decoded.words(), &words[..count]);
                assert!(decoded.agrees(&attachment));
            }
        }
        let unknown = Header::decode(&[0xff; HEADER]);
        assert_eq!(unknown.operation.kind, Kind::Unknown);
        assert!(payload_at(unknown.shape) <= LONGEST);
        assert_eq!(payload_at(Shape::NONE), HEADER);
    }
}
