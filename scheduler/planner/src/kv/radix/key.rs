//! Units that cache keys are made of.

use std::{fmt::Debug, ops::Range};

use super::{Namespace, hash::mix};

/// Key of a text: its namespace, and a unit for each token.
#[derive(Debug, Clone, Copy)]
pub struct RadixKey<'a, K> {
    /// Namespace of the text.
    pub namespace: &'a Namespace,
    /// Units of the text, or of some whole blocks of it.
    pub units: &'a [K],
}

impl<K> RadixKey<'_, K> {
    /// Returns the key without its first `units` units.
    pub(super) fn skip(self, units: usize) -> Self {
        Self {
            units: &self.units[units..],
            ..self
        }
    }
}

/// One unit of a key, one per token.
///
/// A plain model's unit is the token. Under EAGLE a cached position also holds
/// the draft's KV, which depends on the next token, so there the unit is the
/// pair (token, next token).
pub trait KeyUnit: Copy + Ord + Debug + Send + Sync + 'static {
    /// Returns the token at this position, for cache events.
    fn token(self) -> u32;
    /// Folds this unit into a running hash.
    fn absorb(self, hash: u64) -> u64;
    /// Returns the units of some positions of a text, in `scratch` unless they are the text
    /// itself. The pair of the last position needs one token more.
    fn key<'a>(text: &'a [u32], positions: Range<usize>, scratch: &'a mut Vec<Self>) -> &'a [Self];
}

impl KeyUnit for u32 {
    fn token(self) -> u32 {
        self
    }
    fn absorb(self, hash: u64) -> u64 {
        mix(hash ^ u64::from(self))
    }
    fn key<'a>(text: &'a [u32], positions: Range<usize>, _: &'a mut Vec<Self>) -> &'a [Self] {
        &text[positions]
    }
}

impl KeyUnit for (u32, u32) {
    fn token(self) -> u32 {
        self.0
    }
    fn absorb(self, hash: u64) -> u64 {
        mix(hash ^ (u64::from(self.0) << 32 | u64::from(self.1)))
    }
    fn key<'a>(text: &'a [u32], positions: Range<usize>, scratch: &'a mut Vec<Self>) -> &'a [Self] {
        scratch.clear();
        if !positions.is_empty() {
            let pairs = text[positions.start..=positions.end].windows(2);
            scratch.extend(pairs.map(|pair| (pair[0], pair[1])));
        }
        scratch
    }
}
