//! Fields of a chat request.

use serde_json::{Map, Value};

use crate::http::{
    openai::params::openai_request,
    unsupported::{self, Generating, Routes},
};

openai_request! {
    /// A chat request. Fields listed neither here nor among the unsupported are ignored.
    pub(in crate::http) struct ChatRequest {
        messages: Vec<Value>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        max_completion_tokens: Option<i64>,
        logprobs: Option<bool>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        top_logprobs: Option<i64>,
        tools: Option<Vec<Value>>,
        tool_choice: Option<Value>,
        parallel_tool_calls: Option<bool>,
        functions: Option<Vec<Value>>,
        function_call: Option<Value>,
        chat_template_kwargs: Option<Map<String, Value>>,
        reasoning_effort: Option<String>,
        reasoning: Option<Map<String, Value>>,
        enable_thinking: Option<bool>,
        thinking: Option<Map<String, Value>>,
        separate_reasoning: Option<bool>,
        include_reasoning: Option<bool>,
        stream_reasoning: Option<bool>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        thinking_token_budget: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        thinking_budget_tokens: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        reasoning_budget_tokens: Option<i64>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        thinking_budget: Option<i64>,
        custom_params: Option<Map<String, Value>>,
        add_generation_prompt: Option<bool>,
        continue_final_message: Option<bool>,
    }
}

impl Generating for ChatRequest {
    const ROUTE: Routes = unsupported::CHAT;
}
