//! Fields of a request of the Messages API.

use serde_json::{Map, Value};

use crate::http::{
    json::{Object, Speculative},
    sampling::with_sampling_fields,
    unsupported::{self, Generating, Routes},
};

with_sampling_fields! {
    /// A request of the Messages API. Fields listed neither here nor among the unsupported are
    /// ignored.
    pub(in crate::http) struct MessagesRequest {
        pub messages: Vec<Value>,
        pub model: Option<String>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub max_tokens: Option<i64>,
        pub system: Option<Value>,
        pub stop_sequences: Option<Vec<String>>,
        pub stream: Option<bool>,
        pub tools: Option<Vec<Value>>,
        pub tool_choice: Option<Value>,
        pub thinking: Option<Value>,
        pub enable_thinking: Option<bool>,
        pub output_config: Option<Map<String, Value>>,
        pub chat_template_kwargs: Option<Map<String, Value>>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub thinking_token_budget: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub thinking_budget_tokens: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub reasoning_budget_tokens: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub thinking_budget: Option<i64>,
        pub custom_params: Option<Map<String, Value>>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub priority: Option<i32>,
        pub speculative: Option<Object<Speculative>>,
        #[serde(default, deserialize_with = "crate::http::json::integer", alias = "routed_dp_rank")]
        pub data_parallel_rank: Option<i64>,
        #[serde(alias = "extra_key")]
        pub cache_salt: Option<String>,
    }
    min_tokens: min_tokens
}

impl Generating for MessagesRequest {
    const ROUTE: Routes = unsupported::MESSAGES;
}
