//! The header that precedes every payload.

use crate::Operation;

/// Bytes of a header: the operation, and the payload's length in elements.
pub(crate) const HEADER: usize = (Operation::WORDS + 1) * 8;

/// The header of a payload of `elements`.
pub(crate) fn encode(operation: Operation, elements: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let words = operation.to_words().into_iter().chain([elements as u64]);
    for (bytes, word) in header.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// The inverse of [`encode`].
pub(crate) fn decode(header: &[u8; HEADER]) -> (Operation, u64) {
    let (words, _) = header.as_chunks::<8>();
    let word = |index: usize| u64::from_le_bytes(words[index]);
    (
        Operation::from_words(std::array::from_fn(word)),
        word(Operation::WORDS),
    )
}

#[cfg(test)]
mod tests {
    use super::{HEADER, decode, encode};
    use crate::{Kind, Operation};

    #[test]
    fn decodes_what_it_encodes() {
        for kind in Kind::ALL {
            let operation = Operation {
                group: 1 << 50,
                sequence: 1 << 40,
                kind,
                length: 7,
                detail: u64::MAX,
            };
            assert_eq!(decode(&encode(operation, 99)), (operation, 99));
        }
        assert_eq!(decode(&[0xff; HEADER]).0.kind, Kind::Unknown);
    }
}
