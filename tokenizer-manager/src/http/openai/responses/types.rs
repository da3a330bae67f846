//! Fields of a request of the Responses API.

use serde_json::{Map, Value};

use crate::http::{
    json::{Object, Speculative},
    sampling::with_sampling_fields,
    unsupported::{self, Generating, Routes},
};

with_sampling_fields! {
    /// A request of the Responses API. Fields listed neither here nor among the unsupported are
    /// ignored.
    pub(in crate::http) struct ResponsesRequest {
        pub input: Value,
        pub model: Option<String>,
        pub instructions: Option<String>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub max_output_tokens: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        pub max_tool_calls: Option<i64>,
        pub tools: Option<Vec<Value>>,
        pub tool_choice: Option<Value>,
        pub parallel_tool_calls: Option<bool>,
        pub text: Option<Map<String, Value>>,
        pub reasoning: Option<Map<String, Value>>,
        pub enable_thinking: Option<bool>,
        pub include: Option<Vec<String>>,
        pub truncation: Option<String>,
        pub stream: Option<bool>,
        pub metadata: Option<Map<String, Value>>,
        pub user: Option<String>,
        pub safety_identifier: Option<String>,
        pub prompt_cache_key: Option<String>,
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

impl Generating for ResponsesRequest {
    const ROUTE: Routes = unsupported::RESPONSES;
}
