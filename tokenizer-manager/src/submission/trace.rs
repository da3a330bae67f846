//! Trace of a request's inference.

use std::sync::Arc;

use lockstep_traces::InferenceRequest;
use lockstep_types::sampling::SamplingParams;

use super::{GenerateSpec, MaxTokens};
use crate::request_trace::{InferenceTrace, RequestTrace};

/// Begins the inference's span.
pub(super) fn begin(
    request: &RequestTrace,
    model: &str,
    spec: &GenerateSpec,
    sampling: &SamplingParams,
) -> Arc<InferenceTrace> {
    let inference = InferenceRequest {
        operation: match spec.fields.noun {
            "messages" => "chat",
            _ => "text_completion",
        },
        model,
        id: &spec.trace_id,
        max_tokens: match spec.max_tokens {
            MaxTokens::Exact(most) => u32::try_from(most).ok(),
            MaxTokens::Default(most) => Some(most),
            MaxTokens::Rest => None,
        },
        sampling,
        choices: usize::try_from(spec.n).unwrap_or(1) * spec.inputs.len(),
    };
    InferenceTrace::begin(request, &inference)
}
