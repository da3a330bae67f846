//! The words that ranks compare before a pass, if the devices do not compare its data.

use std::fmt;

use lockstep_backend::PassKey;

/// Description of the pass that a rank is about to begin. All ranks compare these words before
/// the pass, because the device's collectives do not compare the data that they carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassStart {
    /// Number of the step.
    pub step: u64,
    /// Draft steps of the step.
    pub depth: u32,
    /// Digest of what all ranks share so far: plans and what followed from them.
    pub shared: u64,
    /// Size of the pass.
    pub key: PassKey,
    /// Digest of the prepared pass of that size, and of its collectives.
    pub pass: u64,
    /// True if the rank can repeat all its recorded passes as they are.
    pub keeps: bool,
}

impl PassStart {
    /// Number of words of the fixed-size encoding.
    pub const WORDS: usize = 11;

    /// Encodes into words.
    pub fn to_words(self) -> [u32; Self::WORDS] {
        let PassKey {
            requests,
            tokens,
            max_q_len,
        } = self.key;
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let [[a, b], [c, d], [e, f]] = [self.step, self.shared, self.pass].map(halves);
        let [requests, tokens, longest] = [requests, tokens, max_q_len].map(|size| size as u32);
        let keeps = u32::from(self.keeps);
        [
            a, b, c, d, e, f, requests, tokens, longest, self.depth, keeps,
        ]
    }

    /// Decodes what [`Self::to_words`] encoded.
    pub fn from_words(words: &[u32; Self::WORDS]) -> Self {
        let whole = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
        Self {
            step: whole(0),
            depth: words[9],
            keeps: words[10] != 0,
            shared: whole(2),
            pass: whole(4),
            key: PassKey {
                requests: words[6] as usize,
                tokens: words[7] as usize,
                max_q_len: words[8] as usize,
            },
        }
    }
}

impl fmt::Display for PassStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            depth,
            shared,
            key,
            pass,
            keeps,
        } = self;
        let recorded = if *keeps { "" } else { ", to be recorded anew" };
        write!(
            f,
            "step {step} at depth {depth} in state {shared:016x} with pass {pass:016x} of \
             {key}{recorded}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_begun_survives_its_words() {
        let begun = PassStart {
            step: 1 << 40 | 7,
            depth: 5,
            shared: 0x0123_4567_89ab_cdef,
            key: PassKey {
                requests: 3,
                tokens: 17,
                max_q_len: 9,
            },
            pass: u64::MAX - 1,
            keeps: true,
        };
        assert_eq!(PassStart::from_words(&begun.to_words()), begun);
        let void = PassStart {
            keeps: false,
            ..begun
        };
        assert_eq!(PassStart::from_words(&void.to_words()), void);
        assert_ne!(void.to_string(), begun.to_string());
        let words = begun.to_string();
        assert!(
            words.contains("step 1099511627783") && words.contains("17 tokens"),
            "{words}"
        );
    }
}
