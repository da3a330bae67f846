//! The request's fields, as SGLang names them. Fields not listed are ignored.

use serde::Deserialize;
use serde_json::Value;

use crate::http::json::{LogitBias, OneOrMany, Prompt, Seed};

/// A native request: one prompt, or a list of them with every other field one
/// for all or one for each.
#[derive(Debug, Deserialize)]
pub(in crate::http) struct GenerateRequest {
    pub text: Option<OneOrMany<String>>,
    pub input_ids: Option<Prompt>,
    pub sampling_params: Option<OneOrMany<SamplingFields>>,
    pub rid: Option<OneOrMany<String>>,
    pub return_logprob: Option<OneOrMany<bool>>,
    pub logprob_start_len: Option<OneOrMany<i64>>,
    pub top_logprobs_num: Option<OneOrMany<i64>>,
    pub return_text_in_logprobs: Option<bool>,
    pub stream: Option<bool>,
    pub priority: Option<i32>,
    pub input_embeds: Option<Value>,
    pub image_data: Option<Value>,
    pub audio_data: Option<Value>,
    pub video_data: Option<Value>,
    pub token_ids_logprob: Option<Value>,
    pub lora_path: Option<Value>,
    pub return_hidden_states: Option<Value>,
}

/// `sampling_params`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::http) struct SamplingFields {
    pub max_new_tokens: Option<i64>,
    pub min_new_tokens: Option<i64>,
    pub stop: Option<OneOrMany<String>>,
    pub stop_token_ids: Option<Vec<u32>>,
    pub stop_regex: Option<Value>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub n: Option<i64>,
    pub json_schema: Option<Value>,
    pub regex: Option<Value>,
    pub ebnf: Option<Value>,
    pub structural_tag: Option<Value>,
    pub ignore_eos: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub no_stop_trim: Option<bool>,
    pub logit_bias: Option<LogitBias>,
    pub sampling_seed: Option<Seed>,
    pub seed: Option<Seed>,
}
