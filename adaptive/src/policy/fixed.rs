//! `static`: the depth always stays the initial one.

use super::{Moment, Policy, PolicyFactory};
use crate::{AdaptiveConfig, Digest};

/// Makes policies that never change the depth.
#[derive(Debug)]
pub(super) struct Fixed;

#[derive(Debug)]
struct Depth(u32);

impl PolicyFactory for Fixed {
    fn name(&self) -> &str {
        "static"
    }

    fn summary(&self) -> &str {
        "the initial depth, always"
    }

    fn obeys(&self, _key: &str) -> bool {
        false
    }

    fn reads_costs(&self) -> bool {
        false
    }

    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(Depth(config.initial_depth))
    }
}

impl Policy for Depth {
    fn decide(&mut self, _moment: &Moment<'_>) -> u32 {
        self.0
    }

    fn digest(&self, digest: &mut Digest) {
        digest.word(u64::from(self.0));
    }
}
