//! Stop strings.

#[cfg(test)]
mod tests;

/// Reason why a list of stop strings is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// An empty string would stop everything.
    #[error("a stop string must not be empty")]
    Empty,
}

/// The stop string that ended a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Index of the stop string in the list given.
    pub index: usize,
}

/// Finds stop strings in a growing text, even if they arrive in pieces. Text that may be the
/// start of a stop string is held back until the rest is known, so no part of a stop string is
/// ever returned. Other text is not held back.
///
/// The first [`push`](Self::push) after which the text contains a stop string decides the match.
/// If the text then contains several, the one that starts first wins, and of those with the same
/// start the one listed first. The time is linear in the text for each stop string (Knuth, Morris
/// and Pratt).
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    include: bool,
    /// Text that may be the start of a stop string, or has not been drained yet.
    held: String,
    matched: Option<StopMatch>,
}

#[derive(Debug, Clone)]
struct Stop {
    text: Box<str>,
    /// `border[n]` is the length of the longest proper border of the first `n + 1` bytes.
    border: Box<[u32]>,
    /// Length of the longest prefix of `text` that the text so far ends with.
    reached: usize,
}

impl StopMatcher {
    /// Makes a matcher of `stops`. With `include`, the matched stop string is returned as text
    /// too, and nothing is held back.
    ///
    /// # Errors
    /// [`StopError::Empty`].
    pub fn new<S: AsRef<str>>(stops: &[S], include: bool) -> Result<Self, StopError> {
        let stops = stops
            .iter()
            .map(|stop| Stop::new(stop.as_ref()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            stops,
            include,
            held: String::new(),
            matched: None,
        })
    }

    /// Adds text, and appends to `out` the text that need not be held back. Returns the stop
    /// string that ended the text, if one did. After a match, further text is ignored.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        if self.matched.is_some() {
            return self.matched;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        let before = self.held.len();
        self.held.push_str(text);
        let mut best: Option<Found> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            if let Some(end) = stop.advance(text.as_bytes()) {
                let end = before + end;
                let start = end as isize - stop.text.len() as isize;
                if best.as_ref().is_none_or(|best| start < best.start) {
                    best = Some(Found { start, end, index });
                }
            }
        }
        match best {
            Some(found) => self.end(&found, out),
            None => self.release(out),
        }
        self.matched
    }

    /// Adds text like [`push`](Self::push), but stop strings in it do not count, as before
    /// `min_tokens`. A stop string that ends in later text counts.
    pub fn push_unmatched(&mut self, text: &str, out: &mut String) {
        if self.matched.is_some() {
            return;
        }
        self.held.push_str(text);
        for stop in &mut self.stops {
            let mut rest = text.as_bytes();
            while let Some(end) = stop.advance(rest) {
                rest = &rest[end..];
            }
        }
        self.release(out);
    }

    /// Ends the text without a match, and appends the text that was held back.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Returns the stop string that ended the text; `None` if none did.
    #[must_use]
    pub fn matched(&self) -> Option<StopMatch> {
        self.matched
    }

    fn end(&mut self, found: &Found, out: &mut String) {
        // Without `include`, the held text contains the start of every possible match, so the
        // start is not negative.
        let kept = if self.include {
            found.end
        } else {
            usize::try_from(found.start).unwrap_or(0)
        };
        out.push_str(&self.held[..kept]);
        self.held.clear();
        self.matched = Some(StopMatch { index: found.index });
    }

    fn release(&mut self, out: &mut String) {
        let reached = self
            .stops
            .iter()
            .map(|stop| stop.reached)
            .max()
            .unwrap_or(0);
        let safe = if self.include {
            self.held.len()
        } else {
            self.held.len() - reached
        };
        out.push_str(&self.held[..safe]);
        self.held.drain(..safe);
    }
}

/// A match, in bytes from the start of the held text. If nothing is held back, the match may
/// start before the held text.
struct Found {
    start: isize,
    end: usize,
    index: usize,
}

impl Stop {
    fn new(text: &str) -> Result<Self, StopError> {
        if text.is_empty() {
            return Err(StopError::Empty);
        }
        let bytes = text.as_bytes();
        let mut border = vec![0u32; bytes.len()];
        let mut length = 0usize;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = border[length - 1] as usize;
            }
            length += usize::from(bytes[at] == bytes[length]);
            border[at] = length as u32;
        }
        Ok(Self {
            text: text.into(),
            border: border.into(),
            reached: 0,
        })
    }

    /// Reads bytes up to the end of the first match and returns that end; `None` if it reads all
    /// bytes without a match.
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let pattern = self.text.as_bytes();
        for (at, &byte) in bytes.iter().enumerate() {
            while self.reached > 0 && pattern[self.reached] != byte {
                self.reached = self.border[self.reached - 1] as usize;
            }
            self.reached += usize::from(pattern[self.reached] == byte);
            if self.reached == pattern.len() {
                self.reached = self.border[self.reached - 1] as usize;
                return Some(at + 1);
            }
        }
        None
    }
}
