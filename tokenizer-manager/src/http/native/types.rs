//! Fields of a native request, under SGLang's names. Other fields are ignored, unless
//! they are listed among the unsupported. Unknown keys of `sampling_params` are
//! refused.

use serde_json::Value;

use crate::http::{
    fields::with_fields,
    json::{Integer, Object, OneOrMany, Prompt, Seed, Speculative},
    sampling::with_sampling_fields,
    unsupported::{self, Generating, Routes},
};

with_fields! {
    /// A native request for one prompt or a list of prompts. In a list, every other
    /// field has one value for all prompts, or one for each.
    pub(in crate::http) struct GenerateRequest {
        pub text: Option<OneOrMany<String>>,
        pub input_ids: Option<Prompt>,
        pub sampling_params: Option<OneOrMany<Object<SamplingFields>>>,
        pub rid: Option<OneOrMany<String>>,
        pub return_logprob: Option<OneOrMany<bool>>,
        pub logprob_start_len: Option<OneOrMany<Integer>>,
        pub top_logprobs_num: Option<OneOrMany<Integer>>,
        pub return_text_in_logprobs: Option<bool>,
        pub stream: Option<bool>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub priority: Option<i32>,
        pub speculative: Option<OneOrMany<Object<Speculative>>>,
        #[serde(default, deserialize_with = "crate::http::json::integer", alias = "routed_dp_rank")]
        pub data_parallel_rank: Option<i64>,
        #[serde(alias = "extra_key")]
        pub cache_salt: Option<OneOrMany<String>>,
        pub lora_path: Option<OneOrMany<String>>,
    }
}

impl Generating for GenerateRequest {
    const ROUTE: Routes = unsupported::GENERATE;
    const PARAMS: &'static [(&'static str, &'static str)] = SamplingFields::FIELDS;
}

with_sampling_fields! {
    /// `sampling_params`.
    #[derive(Clone, Default)]
    pub(in crate::http) struct SamplingFields {
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub max_new_tokens: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub n: Option<i64>,
        pub stop: Option<OneOrMany<String>>,
        pub skip_special_tokens: Option<bool>,
        pub no_stop_trim: Option<bool>,
        pub sampling_seed: Option<Seed>,
        pub json_schema: Option<Value>,
        pub regex: Option<String>,
        pub ebnf: Option<String>,
        pub structural_tag: Option<Value>,
    }
    min_tokens: min_new_tokens
}
