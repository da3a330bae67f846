//! Decoding of UTF-8 that arrives in pieces.

/// Number of replacement characters for bytes that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// One for each maximal invalid sequence, as in `String::from_utf8_lossy` (byte-level
    /// tokenizers).
    PerSequence,
    /// One for each byte (byte-fallback tokenizers).
    PerByte,
}

/// Turns bytes into text, and keeps the bytes of a character that is not complete yet.
#[derive(Debug, Clone)]
pub(crate) struct Utf8Stream {
    pending: [u8; 4],
    len: usize,
    invalid: Invalid,
}

impl Utf8Stream {
    pub(crate) fn new(invalid: Invalid) -> Self {
        Self {
            pending: [0; 4],
            len: 0,
            invalid,
        }
    }

    /// Appends to `out` the text that `bytes` complete.
    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.len > 0 {
            let Some((&byte, rest)) = bytes.split_first() else {
                return;
            };
            bytes = rest;
            self.pending[self.len] = byte;
            self.len += 1;
            self.settle(out);
        }
        loop {
            match std::str::from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(length) = error.error_len() else {
                        self.pending[..rest.len()].copy_from_slice(rest);
                        self.len = rest.len();
                        return;
                    };
                    self.replace(length, out);
                    bytes = &rest[length..];
                }
            }
        }
    }

    /// Appends replacement characters for a character that stays incomplete.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if self.len > 0 {
            self.replace(self.len, out);
            self.len = 0;
        }
    }

    /// Moves the decided part of the pending bytes to `out`.
    fn settle(&mut self, out: &mut String) {
        while self.len > 0 {
            match std::str::from_utf8(&self.pending[..self.len]) {
                Ok(text) => {
                    out.push_str(text);
                    self.len = 0;
                }
                Err(error) => {
                    // The pending bytes start one character, so nothing before the error is
                    // valid.
                    let Some(length) = error.error_len() else {
                        return;
                    };
                    self.replace(length, out);
                    self.pending.copy_within(length..self.len, 0);
                    self.len -= length;
                }
            }
        }
    }

    fn replace(&self, bytes: usize, out: &mut String) {
        let count = match self.invalid {
            Invalid::PerSequence => 1,
            Invalid::PerByte => bytes,
        };
        out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
    }
}
