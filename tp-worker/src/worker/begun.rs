//! What ranks agree on before a pass, where nobody compares what they exchange.

use std::fmt;

use lockstep_backend::PassKey;

/// What a rank is about to begin: words that all ranks compare before data goes its own
/// way, where nobody would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// The step.
    pub step: u64,
    /// Its draft steps.
    pub depth: u32,
    /// Digest of what all ranks share so far: plans, and what was made of them.
    pub shared: u64,
    /// The size of its pass.
    pub key: PassKey,
    /// Digest of the pass that is prepared for that size, and of its collectives.
    pub pass: u64,
    /// Whether all that the rank has recorded is repeated as it is.
    pub keeps: bool,
}

impl Begun {
    /// Words of the fixed-size encoding.
    pub const WORDS: usize = 11;

    /// The encoding.
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

    /// The inverse of [`Self::to_words`].
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

impl fmt::Display for Begun {
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
        let begun = Begun {
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
        assert_eq!(Begun::from_words(&begun.to_words()), begun);
        let void = Begun {
            keeps: false,
            ..begun
        };
        assert_eq!(Begun::from_words(&void.to_words()), void);
        assert_ne!(void.to_string(), begun.to_string());
        let words = begun.to_string();
        assert!(
            words.contains("step 1099511627783") && words.contains("17 tokens"),
            "{words}"
        );
    }
}
