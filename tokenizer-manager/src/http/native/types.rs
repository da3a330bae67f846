//! The request's fields, as SGLang names them. Fields listed neither here nor
//! among the unsupported are ignored.

use serde::Deserialize;

use crate::http::{
    json::{LogitBias, Object, OneOrMany, Prompt, Seed, Speculative},
    unsupported::{self, Generating, Routes},
};

/// A native request: one prompt, or a list of them with every other field one
/// for all or one for each.
#[derive(Debug, Deserialize)]
pub(in crate::http) struct GenerateRequest {
    pub text: Option<OneOrMany<String>>,
    pub input_ids: Option<Prompt>,
    pub sampling_params: Option<OneOrMany<Object<SamplingFields>>>,
    pub rid: Option<OneOrMany<String>>,
    pub return_logprob: Option<OneOrMany<bool>>,
    pub logprob_start_len: Option<OneOrMany<i64>>,
    pub top_logprobs_num: Option<OneOrMany<i64>>,
    pub return_text_in_logprobs: Option<bool>,
    pub stream: Option<bool>,
    pub priority: Option<i32>,
    pub speculative: Option<OneOrMany<Object<Speculative>>>,
}

impl Generating for GenerateRequest {
    const ROUTE: Routes = unsupported::GENERATE;
}

/// `sampling_params`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::http) struct SamplingFields {
    pub max_new_tokens: Option<i64>,
    pub min_new_tokens: Option<i64>,
    pub stop: Option<OneOrMany<String>>,
    pub stop_token_ids: Option<Vec<u32>>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub n: Option<i64>,
    pub ignore_eos: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub no_stop_trim: Option<bool>,
    pub logit_bias: Option<LogitBias>,
    pub sampling_seed: Option<Seed>,
    pub seed: Option<Seed>,
}
