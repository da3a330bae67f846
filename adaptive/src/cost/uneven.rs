//! Passes whose tokens lie unevenly on the ranks.

use super::{Costs, Curve, mul_div};
use crate::Seen;

/// One in fixed point with 16 binary places: a mean rank as full as the fullest, or a pass that
/// is all shared.
const WHOLE: u32 = 1 << 16;

/// Evenness of a pass's tokens over the ranks.
///
/// Measured are passes in which all ranks have equally many tokens. In other passes all ranks
/// wait for the fullest rank's attention and the products around it, but a rank's part of the
/// MLP and the head takes in the tokens of all. So the own part of a pass is taken to last as
/// if every rank had as many tokens as the fullest, and the shared part as if every rank had
/// the mean. Example: with 32 tokens on one of two ranks, none on the other, and half of a pass
/// shared, the pass counts as one of 24 tokens on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loads {
    /// Tokens of the mean rank, in 65,536ths of the fullest rank's. 65,536 if all ranks run the
    /// same, or equally much.
    pub balance: u32,
    /// See [`AdaptiveConfig::shared_part`](crate::AdaptiveConfig::shared_part).
    pub shared_part: u32,
}

impl Loads {
    /// All ranks have equally many tokens.
    pub const EVEN: Self = Self {
        balance: WHOLE,
        shared_part: WHOLE,
    };

    /// Returns the tokens on every rank of the even pass that is nearest to one with `tokens`
    /// on the fullest rank.
    pub(super) fn even(self, tokens: u32) -> u32 {
        let spared = u64::from(WHOLE.saturating_sub(self.balance)) * self.shared();
        let even = mul_div(tokens.into(), (1 << 32) - spared, 1 << 31).div_ceil(2);
        u32::try_from(even).unwrap_or(u32::MAX).max(tokens.min(1))
    }

    fn are_even(self) -> bool {
        self.balance >= WHOLE
    }

    fn shared(self) -> u64 {
        self.shared_part.min(WHOLE).into()
    }
}

impl Costs {
    /// Returns the nanoseconds of a pass with `tokens` tokens on the fullest rank.
    pub(super) fn pass_ns(
        &self,
        tokens: u32,
        loads: Loads,
        at: impl Fn(&Curve, u32) -> Option<u64>,
    ) -> Option<u64> {
        if loads.are_even() {
            return at(&self.verify, tokens);
        }
        let at = |tokens| at(&self.verify, tokens).map(u128::from);
        let most = at(tokens)?;
        // The mean rank's tokens, with the fraction of a token.
        let mean = u64::from(tokens) * u64::from(loads.balance);
        let (tokens, part) = ((mean >> 16) as u32, u128::from(mean % u64::from(WHOLE)));
        let mean = match (tokens, part) {
            (0, _) => at(1)?,
            (_, 0) => at(tokens)?,
            _ => {
                let [from, to] = [at(tokens)?, at(tokens + 1)?];
                from + (to.saturating_sub(from) * part) / u128::from(WHOLE)
            }
        };
        let shared = u128::from(loads.shared());
        let ns = most * (u128::from(WHOLE) - shared) + mean * shared;
        u64::try_from(ns / u128::from(WHOLE)).ok()
    }

    /// Returns the even step that corresponds to a step. Its pass has equally many tokens on
    /// every rank, and differs from its expected time by the same factor as the step's.
    pub(super) fn evened(&self, seen: &Seen, loads: Loads) -> Seen {
        if loads.are_even() {
            return *seen;
        }
        let tokens = loads.even(seen.tokens);
        let expected = self.pass_ns(seen.tokens, loads, Curve::at);
        let verify_us = match (self.verify.at(tokens), expected) {
            (Some(even), Some(expected)) => mul_div(seen.verify_us.into(), even, expected),
            _ => seen.verify_us.into(),
        };
        Seen {
            tokens,
            verify_us: u32::try_from(verify_us).unwrap_or(u32::MAX),
            ..*seen
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdaptiveConfig;

    /// Returns costs of 100 ms per pass, and one more for each token beyond eight.
    fn costs() -> Costs {
        let measured = [1, 8, 64].map(|tokens: u32| Seen {
            decodes: tokens,
            tokens,
            verify_us: 1_000 * (100 + tokens.saturating_sub(8)),
            ..Seen::default()
        });
        Costs::new(&AdaptiveConfig::new("", 0, vec![], vec![]), &measured)
    }

    fn loads(balance: u32, shared_part: u32) -> Loads {
        Loads {
            balance,
            shared_part,
        }
    }

    #[test]
    fn the_shared_part_of_a_pass_is_that_of_the_mean_rank() {
        let costs = costs();
        let us = |tokens, loads| costs.pass_ns(tokens, loads, Curve::at).unwrap() / 1_000;
        // (tokens of the fullest rank, balance, shared part, microseconds)
        for (tokens, balance, shared_part, expected) in [
            (32, WHOLE, 0, 124_000),
            (32, WHOLE, WHOLE, 124_000),
            (32, WHOLE / 2, 0, 124_000),
            (32, WHOLE / 2, WHOLE, 108_000),
            (32, WHOLE / 2, WHOLE / 4, 120_000),
            // A fraction of a token counts, and less than one token counts as one.
            (33, WHOLE / 2, WHOLE, 108_500),
            (32, WHOLE / 64, WHOLE, 100_000),
            (32, 0, WHOLE / 2, 112_000),
            // More than the whole counts as the whole.
            (32, 2 * WHOLE, WHOLE, 124_000),
            (32, WHOLE / 2, 3 * WHOLE, 108_000),
        ] {
            let found = us(tokens, loads(balance, shared_part));
            assert_eq!(found, expected, "{tokens} {balance} {shared_part}");
        }
        // The times are equal to the bit if all ranks have equally many tokens.
        for tokens in [0, 1, 7, 13, 1_000, u32::MAX] {
            for shared_part in [0, 1, 54_321, WHOLE] {
                let even = loads(WHOLE, shared_part);
                let plain = costs.verify.at(tokens);
                assert_eq!(costs.pass_ns(tokens, even, Curve::at), plain);
                assert_eq!(even.even(tokens), tokens);
            }
        }
    }

    #[test]
    fn an_uneven_step_corrects_by_the_part_that_it_was_off() {
        let costs = costs();
        let seen = |tokens, verify_us| Seen {
            decodes: 8,
            tokens,
            verify_us,
            draft_us: 5,
            ..Seen::default()
        };
        let uneven = loads(WHOLE / 2, WHOLE / 2);
        // 32 tokens on one of two ranks are expected to take 116 ms, as 24 on both.
        assert_eq!(costs.evened(&seen(32, 116_000), uneven), seen(24, 116_000));
        assert_eq!(costs.evened(&seen(32, 232_000), uneven), seen(24, 232_000));
        assert_eq!(costs.evened(&seen(8, 3_000), uneven), seen(6, 3_000));
        // 12 tokens on one rank are expected to take 102 ms, and 9 on both 101 ms.
        assert_eq!(costs.evened(&seen(12, 204_000), uneven), seen(9, 202_000));
        for loads in [Loads::EVEN, loads(WHOLE, 7)] {
            assert_eq!(costs.evened(&seen(12, 3_601), loads), seen(12, 3_601));
        }
        let none = Costs::new(&AdaptiveConfig::new("", 0, vec![], vec![]), &[]);
        assert_eq!(none.evened(&seen(32, 17_000), uneven), seen(24, 17_000));
    }
}
