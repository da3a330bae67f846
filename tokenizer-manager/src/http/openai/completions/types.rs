//! Fields of a completions request.

use crate::http::{
    json::Prompt,
    openai::params::openai_request,
    unsupported::{self, Generating, Routes},
};

openai_request! {
    /// A completions request. Fields listed neither here nor among the unsupported are ignored.
    pub(in crate::http) struct CompletionRequest {
        prompt: Option<Prompt>,
        echo: Option<bool>,
        #[serde(default, deserialize_with = "crate::http::json::integer")]
        logprobs: Option<i64>,
        suffix: Option<String>,
        add_special_tokens: Option<bool>,
    }
}

impl Generating for CompletionRequest {
    const ROUTE: Routes = unsupported::COMPLETIONS;
}
