//! Goldens of transformers, see `tests/fixtures/README.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};

use crate::setup::root;

/// Most output tokens that were generated.
pub const MAX_NEW: u32 = 64;

/// One prompt to the demo model, computed in float32.
#[derive(Deserialize)]
pub struct Golden {
    pub prompt_ids: Vec<u32>,
    pub output_ids: Vec<u32>,
    pub first_top5: Vec<(u32, f32)>,
}

/// One prompt to the demo hybrid, computed in float32, and drafts of its own layer.
#[derive(Deserialize)]
pub struct Hybrid {
    #[serde(flatten)]
    pub golden: Golden,
    /// Drafts accepted in each round, by the most that were drafted.
    pub accepted: BTreeMap<String, Vec<u32>>,
}

/// Figures of the demo model along one golden's text, teacher-forced in float32.
#[derive(Deserialize)]
pub struct Scores {
    /// Log-probabilities of the prompt from its second token on.
    pub prompt_logprobs: Vec<f32>,
    pub output_logprobs: Vec<f32>,
    /// Differences of the two largest logits, per output position.
    pub top2_logit_gaps: Vec<f32>,
    /// Largest error of logits in transformers' own bfloat16 run.
    pub bf16_max_logit_error: f32,
}

/// One prompt to a random model.
#[derive(Deserialize)]
pub struct Random {
    pub ids: Vec<u32>,
    /// Log-probabilities of the prompt from its second token on.
    pub prompt_logprobs: Vec<f32>,
    pub greedy_ids: Vec<u32>,
    pub greedy_top2_gaps: Vec<f32>,
    /// Lead of the last chosen expert at each position; empty where it does not matter.
    #[serde(default)]
    route_margins: Vec<f32>,
}

impl Random {
    /// Returns true if logits that are off by `error` leave the experts of a position alone. What
    /// decides about experts is a tenth as far off, as sigmoids are flat.
    pub fn is_routed_alike(&self, position: usize, error: f32) -> bool {
        let margin = self.route_margins.get(position);
        margin.is_none_or(|margin| *margin > 0.1 * error)
    }
}

/// All prompts to one random model.
#[derive(Deserialize)]
pub struct RandomModel {
    pub bf16_max_logit_error: f32,
    pub prompts: Vec<Random>,
}

#[derive(Deserialize)]
struct Prompts<T> {
    prompts: Vec<T>,
}

/// The 40 prompts to the demo model.
pub fn goldens() -> Vec<Golden> {
    read::<Prompts<Golden>>("goldens.json").prompts
}

/// Prompts to the demo hybrid.
pub fn hybrid() -> Vec<Hybrid> {
    read::<Prompts<Hybrid>>("hybrid_goldens.json").prompts
}

/// Scores of the demo model, in the order of [`goldens`].
pub fn scores() -> Vec<Scores> {
    read::<Prompts<Scores>>("demo_logprobs.json").prompts
}

/// Prompts to the model in a folder of `architectures/`.
pub fn random_model(architecture: &str) -> RandomModel {
    read(&format!("architectures/{architecture}/golden.json"))
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    let text = std::fs::read(root().join("tests/fixtures").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}
