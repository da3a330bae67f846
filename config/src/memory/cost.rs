//! Bytes that cached tokens take, where layers with sliding windows keep fewer of them.

use super::{NodeMemory, Sizing};

/// Bytes of the caches by the tokens that they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenCost {
    /// Bytes of a token in the groups of layers that keep all positions.
    full: u64,
    /// Bytes of a token in the groups with windows.
    window: u64,
    /// Most tokens that the groups with windows keep.
    most: u64,
}

impl TokenCost {
    /// Returns the cost in the memory of a node or a device.
    pub fn of(node: &NodeMemory, sizing: &Sizing<'_>) -> Self {
        Self {
            full: node.per_token,
            window: node.window_per_token,
            most: sizing.window_tokens().unwrap_or(u64::MAX),
        }
    }

    /// Returns the bytes of caches of `tokens` tokens.
    pub fn bytes(self, tokens: u64) -> u64 {
        let full = tokens.saturating_mul(self.full);
        full.saturating_add(tokens.min(self.most).saturating_mul(self.window))
    }

    /// Returns the most tokens that `bytes` hold. Up to `most` tokens each takes its part of
    /// all groups; behind that, windows take no more.
    pub fn tokens(self, bytes: u64) -> u64 {
        // Where no group takes bytes of a token, any number of tokens fits.
        let alike = bytes.checked_div(self.full.saturating_add(self.window));
        let alike = alike.unwrap_or(u64::MAX);
        if alike < self.most {
            return alike;
        }
        let windows = self.most.saturating_mul(self.window);
        // Without groups that keep all positions, tokens behind the windows take nothing.
        let left = bytes.saturating_sub(windows).checked_div(self.full);
        left.unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::TokenCost;

    /// Layers that keep states alone have no bytes of tokens.
    #[test]
    fn tokens_without_bytes_fit_in_any_number() {
        for most in [0, 7, u64::MAX] {
            let cost = TokenCost {
                full: 0,
                window: 0,
                most,
            };
            assert_eq!([cost.tokens(0), cost.tokens(9)], [u64::MAX; 2]);
        }
    }

    proptest! {
        /// The oracle tries all numbers of tokens.
        #[test]
        fn as_many_tokens_as_fit(
            full in 0u64..20,
            window in 0u64..100,
            most in prop_oneof![0u64..60, Just(u64::MAX)],
            bytes in 0u64..2_000,
        ) {
            let cost = TokenCost { full, window, most };
            let fits = |tokens: &u64| cost.bytes(*tokens) <= bytes;
            let tokens = (0..=2_000u64).take_while(fits).last();
            prop_assert_eq!(Some(cost.tokens(bytes).min(2_000)), tokens);
        }
    }
}
