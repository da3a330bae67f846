//! Names of attributes: OpenTelemetry's conventions for HTTP, RPC and generative models, and
//! our own for what those have no name for.
//! <https://github.com/open-telemetry/semantic-conventions-genai>,
//! <https://opentelemetry.io/docs/specs/semconv/http/http-spans/>

use lockstep_types::request::FinishReason;
use opentelemetry::{KeyValue, Value};

macro_rules! names {
    ($($(#[$meta:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$meta])* pub const $name: &str = $text;)*
    };
}

names! {
    /// `chat`, `text_completion` or `generate_content`.
    GEN_AI_OPERATION_NAME = "gen_ai.operation.name";
    /// Who computes.
    GEN_AI_PROVIDER_NAME = "gen_ai.provider.name";
    /// The model that was asked for.
    GEN_AI_REQUEST_MODEL = "gen_ai.request.model";
    /// Tokens that a choice may have.
    GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens";
    /// As asked for.
    GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature";
    /// As asked for.
    GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p";
    /// As asked for.
    GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k";
    /// As asked for.
    GEN_AI_REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty";
    /// As asked for.
    GEN_AI_REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty";
    /// As asked for.
    GEN_AI_REQUEST_SEED = "gen_ai.request.seed";
    /// Choices per prompt, where there are several.
    GEN_AI_REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count";
    /// The model that answers.
    GEN_AI_RESPONSE_MODEL = "gen_ai.response.model";
    /// The answer's id.
    GEN_AI_RESPONSE_ID = "gen_ai.response.id";
    /// Why choices ended, in the order in which they did.
    GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons";
    /// Seconds from the request's arrival to the first token of any choice.
    GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk";
    /// Tokens of all prompts.
    GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens";
    /// Of those, tokens from the prefix cache.
    GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens";
    /// Tokens of all choices.
    GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens";
    /// GET, POST, …
    HTTP_REQUEST_METHOD = "http.request.method";
    /// The route's path.
    HTTP_ROUTE = "http.route";
    /// Of the answer.
    HTTP_RESPONSE_STATUS_CODE = "http.response.status_code";
    /// The request's path.
    URL_PATH = "url.path";
    /// http or https.
    URL_SCHEME = "url.scheme";
    /// The system that a call belongs to: `grpc`.
    RPC_SYSTEM = "rpc.system.name";
    /// Service and method of a call.
    RPC_METHOD = "rpc.method";
    /// The status of a call, by its name in gRPC.
    RPC_STATUS = "rpc.response.status_code";
    /// The code of an error.
    ERROR_TYPE = "error.type";
    /// The id that clients and log lines know a request by.
    REQUEST_ID = "lockstep.request.id";
    /// The DP rank that a request runs in.
    DP_RANK = "lockstep.dp_rank";
    /// The rank whose steps these are.
    RANK = "lockstep.rank";
    /// Tokens of the prompt.
    PROMPT_TOKENS = "lockstep.prompt_tokens";
    /// Of those, tokens from the prefix cache.
    CACHED_TOKENS = "lockstep.cached_tokens";
    /// Tokens that came.
    TOKENS = "lockstep.tokens";
    /// The request lost its place in the batch, and waits for another.
    RETRACTED = "lockstep.retracted";
    /// Why a choice ended.
    FINISH_REASON = "lockstep.finish_reason";
    /// Passes that verified drafts of the request.
    VERIFY_STEPS = "lockstep.speculation.verify_steps";
    /// Tokens drafted for it and verified.
    DRAFT_TOKENS = "lockstep.speculation.draft_tokens";
    /// Of those, accepted ones.
    ACCEPTED_TOKENS = "lockstep.speculation.accepted_tokens";
    /// Steps that a rank did meanwhile, for all requests of the batch.
    STEPS = "lockstep.steps";
    /// What those took, from plan taken to tokens known, microseconds of the rank's own clock.
    STEP_US = "lockstep.step_us";
    /// Of that, drafting.
    DRAFT_US = "lockstep.draft_us";
    /// Of that, passes, which verify drafts where there are any.
    VERIFY_US = "lockstep.verify_us";
    /// What the drafter did with the outcomes, behind the steps.
    EXTEND_US = "lockstep.extend_us";
    /// What becoming text took, microseconds.
    DETOKENIZE_US = "lockstep.detokenize_us";
    /// Times that tokens came.
    CHUNKS = "lockstep.chunks";
}

/// What [`GEN_AI_PROVIDER_NAME`] is here.
pub const PROVIDER: &str = "lockstep";

/// How conventions call a choice's end.
pub fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

/// One attribute.
pub(crate) fn pair(name: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(name, value)
}
