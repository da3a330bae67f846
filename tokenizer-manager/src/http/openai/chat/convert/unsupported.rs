//! Refusal of features of OpenAI's chat API that this version does not support. They
//! are refused rather than ignored.

use super::ChatRequest;
use crate::error::{ApiError, ApiResult};

pub(super) fn check(request: &ChatRequest) -> ApiResult<()> {
    if request.functions.is_some() || request.function_call.is_some() {
        let param = if request.functions.is_some() {
            "functions"
        } else {
            "function_call"
        };
        let message = format!("'{param}' is not supported by this version; send 'tools'.");
        return Err(ApiError::unsupported(param, message));
    }
    if request.stream_reasoning == Some(false) {
        return Err(ApiError::unsupported(
            "stream_reasoning",
            "'stream_reasoning' is not supported by this version: reasoning is streamed as it \
             comes; leave it out, or set 'include_reasoning' to false.",
        ));
    }
    Ok(())
}
