//! Texts and accepted drafts of the reference implementation, see
//! `tests/fixtures/README.md`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Deserializer, de::Error};

use crate::setup::{Algorithm, root};

/// Most output tokens that were generated.
pub const MAX_NEW: u32 = 64;

/// The longest chain that was drafted.
pub const DEEPEST: u32 = 7;

/// One prompt to the demo model, computed in float32.
#[derive(Deserialize)]
pub struct Golden {
    pub prompt_ids: Vec<u32>,
    pub output_ids: Vec<u32>,
    pub accepted: Accepted,
}

/// Drafted tokens accepted in each round. The last round is not cut at the text's end.
#[derive(Deserialize)]
pub struct Accepted {
    eagle3: Chains,
    eagle: Chains,
    dflash: Chains,
    draft: Chains,
    /// EAGLE-3 with 4 branches, 3 steps and 16 tokens, the root included.
    #[serde(rename = "eagle3_tree_topk4_steps3_total16")]
    pub tree: Vec<u32>,
}

/// Rounds of chains, by the chain's length.
struct Chains(BTreeMap<u32, Vec<u32>>);

impl<'de> Deserialize<'de> for Chains {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let chains = BTreeMap::<String, Vec<u32>>::deserialize(source)?;
        let chain = |(steps, accepted): (String, _)| {
            let steps = steps.parse().map_err(D::Error::custom)?;
            Ok((steps, accepted))
        };
        chains
            .into_iter()
            .map(chain)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Accepted {
    /// Accepted drafts of chains of `steps` steps.
    pub fn chain(&self, algorithm: Algorithm, steps: u32) -> &[u32] {
        let chains = match algorithm {
            Algorithm::Eagle3 => &self.eagle3,
            Algorithm::Eagle => &self.eagle,
            Algorithm::Dflash => &self.dflash,
            Algorithm::Standalone => &self.draft,
            Algorithm::Ngram | Algorithm::Nextn | Algorithm::JumpForward | Algorithm::Itself => {
                panic!("the reference has no {algorithm:?}")
            }
        };
        &chains.0[&steps]
    }
}

/// The 40 prompts, two of every domain.
pub static GOLDENS: LazyLock<Vec<Golden>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        prompts: Vec<Golden>,
    }
    let text = std::fs::read(root().join("tests/fixtures/goldens.json")).unwrap();
    serde_json::from_slice::<File>(&text).unwrap().prompts
});
