//! Estimate of the memory that running requests want still.
//!
//! SGLang's `new_token_ratio` in integers: the expected share of the tokens that requests may
//! still generate. The share falls with every step, so that the batch fills up. It jumps up at
//! a retraction, which showed that it was too low.

use crate::{kv::Kv, request::RequestState};

const ONE: u64 = 1024;
/// The ratios 0.7 and 0.7 · 0.14, in 1/1024, before the factor of conservativeness.
const INITIAL: u64 = 717;
const LOWEST: u64 = 100;
/// Most future tokens that a request is charged for.
const CLIP_MAX_NEW_TOKENS: u32 = 4096;
/// Steps that each request is expected to run on, at least, after a retraction.
const RETRACT_DECODE_STEPS: u64 = 20;

/// Expected share of the tokens still allowed, in 1/1024.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewTokenRatio {
    now: u64,
    lowest: u64,
}

impl NewTokenRatio {
    /// The ratio at start, for a conservativeness in thousandths.
    pub fn new(conservativeness: u32) -> Self {
        let scaled = |ratio: u64| (ratio * u64::from(conservativeness) / 1000).min(ONE);
        Self {
            now: scaled(INITIAL),
            lowest: scaled(LOWEST),
        }
    }

    /// Lowers the ratio after a step without retraction: from first to lowest in about 600
    /// steps.
    pub fn decay(&mut self) {
        self.now = self.now.saturating_sub(1).max(self.lowest);
    }

    /// Raises the ratio at a retraction, at least to the share that running requests have shown
    /// to need. `running` has each request's emitted tokens and the most that it may emit.
    pub fn raise(&mut self, running: impl Iterator<Item = (u32, u32)>) {
        let (mut shown, mut allowed) = (0, 0);
        for (emitted, most) in running {
            shown += u64::from(emitted) + RETRACT_DECODE_STEPS;
            allowed += u64::from(most);
        }
        let ratio = (shown * ONE).checked_div(allowed).unwrap_or(ONE);
        self.now = ratio.clamp(self.now, ONE);
    }

    /// Returns the pages that a request is expected to want beyond its own. `reserve` is the
    /// number of slots for the step that writes most.
    pub fn future_pages(&self, kv: &Kv, request: &RequestState, reserve: u32) -> u32 {
        let more = u64::from(request.remaining().min(CLIP_MAX_NEW_TOKENS));
        // The result is at most CLIP_MAX_NEW_TOKENS, so the cast loses nothing.
        let more = (more * self.now).div_ceil(ONE) as u32;
        kv.missing(&request.kv, request.len() + more + reserve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falls_slowly_and_jumps_back() {
        let mut ratio = NewTokenRatio::new(1000);
        assert_eq!(ratio.now, INITIAL);
        (0..10_000).for_each(|_| ratio.decay());
        assert_eq!(ratio.now, LOWEST);
        // Three parts of ten are emitted; a request that has hardly begun shows nothing.
        ratio.raise([(280, 1_000)].into_iter());
        assert_eq!(ratio.now, 307);
        ratio.raise([(0, 1_000)].into_iter());
        assert_eq!(ratio.now, 307);
        // No request is left to learn from: expect everything.
        ratio.raise(std::iter::empty());
        assert_eq!(ratio.now, ONE);
        let mut careless = NewTokenRatio::new(0);
        careless.decay();
        assert_eq!(careless.now, 0);
        assert_eq!(NewTokenRatio::new(u32::MAX).now, ONE);
    }
}
