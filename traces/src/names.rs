//! Names of attributes: OpenTelemetry's conventions for HTTP, RPC and generative models, and
//! our own names where those have none.
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
    /// Operation: `chat`, `text_completion` or `generate_content`.
    GEN_AI_OPERATION_NAME = "gen_ai.operation.name";
    /// Name of the provider that computes.
    GEN_AI_PROVIDER_NAME = "gen_ai.provider.name";
    /// Name of the requested model.
    GEN_AI_REQUEST_MODEL = "gen_ai.request.model";
    /// Largest number of tokens of a choice.
    GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens";
    /// Requested temperature.
    GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature";
    /// Requested limit of cumulative probability.
    GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p";
    /// Requested limit of the number of candidates.
    GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k";
    /// Requested penalty by frequency.
    GEN_AI_REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty";
    /// Requested penalty by presence.
    GEN_AI_REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty";
    /// Requested seed.
    GEN_AI_REQUEST_SEED = "gen_ai.request.seed";
    /// Number of choices per prompt, if there are several.
    GEN_AI_REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count";
    /// Name of the model that answers.
    GEN_AI_RESPONSE_MODEL = "gen_ai.response.model";
    /// Id of the answer.
    GEN_AI_RESPONSE_ID = "gen_ai.response.id";
    /// Reasons why choices ended, in the order of their ends.
    GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons";
    /// Seconds from the request's arrival to the first token of any choice.
    GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk";
    /// Number of tokens of all prompts.
    GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens";
    /// Number of prompt tokens from the prefix cache.
    GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens";
    /// Number of tokens of all choices.
    GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens";
    /// HTTP method: GET, POST, …
    HTTP_REQUEST_METHOD = "http.request.method";
    /// Path of the route.
    HTTP_ROUTE = "http.route";
    /// HTTP status of the answer.
    HTTP_RESPONSE_STATUS_CODE = "http.response.status_code";
    /// Path of the request.
    URL_PATH = "url.path";
    /// Scheme: http or https.
    URL_SCHEME = "url.scheme";
    /// System that a call belongs to: `grpc`.
    RPC_SYSTEM = "rpc.system.name";
    /// Service and method of a call.
    RPC_METHOD = "rpc.method";
    /// Status of a call, by its name in gRPC.
    RPC_STATUS = "rpc.response.status_code";
    /// Code of an error.
    ERROR_TYPE = "error.type";
    /// Id of a request for clients and in log lines.
    REQUEST_ID = "lockstep.request.id";
    /// DP rank that a request runs in.
    DP_RANK = "lockstep.dp_rank";
    /// Rank that ran the steps.
    RANK = "lockstep.rank";
    /// Number of tokens of the prompt.
    PROMPT_TOKENS = "lockstep.prompt_tokens";
    /// Number of prompt tokens from the prefix cache.
    CACHED_TOKENS = "lockstep.cached_tokens";
    /// Number of tokens that came.
    TOKENS = "lockstep.tokens";
    /// True if the request lost its place in the batch and waits for another.
    RETRACTED = "lockstep.retracted";
    /// The reason why a choice ended.
    FINISH_REASON = "lockstep.finish_reason";
    /// Number of passes that verified drafts of the request.
    VERIFY_STEPS = "lockstep.speculation.verify_steps";
    /// Number of tokens drafted for the request and verified.
    DRAFT_TOKENS = "lockstep.speculation.draft_tokens";
    /// Number of accepted drafts.
    ACCEPTED_TOKENS = "lockstep.speculation.accepted_tokens";
    /// Number of steps of a rank meanwhile, for all requests of the batch.
    STEPS = "lockstep.steps";
    /// Microseconds of these steps, from plan taken to tokens known, by the rank's own clock.
    STEP_US = "lockstep.step_us";
    /// The part of [`STEP_US`] for drafting.
    DRAFT_US = "lockstep.draft_us";
    /// The part of [`STEP_US`] for passes, which also verify drafts.
    VERIFY_US = "lockstep.verify_us";
    /// Microseconds that the drafter took to use the outcomes, after the steps.
    EXTEND_US = "lockstep.extend_us";
    /// Number of masks that a lead computed for constraints in these steps.
    MASKS = "lockstep.constraint.masks";
    /// Microseconds of these masks, a part of [`VERIFY_US`].
    MASK_US = "lockstep.constraint.mask_us";
    /// Microseconds that a step stood still until a constraint was compiled.
    WAIT_US = "lockstep.constraint.wait_us";
    /// Language of a constraint.
    CONSTRAINT_KIND = "lockstep.constraint.kind";
    /// True if a constraint had been compiled before.
    CONSTRAINT_CACHED = "lockstep.constraint.cached";
    /// Microseconds for turning tokens into text.
    DETOKENIZE_US = "lockstep.detokenize_us";
    /// Number of times that tokens came.
    CHUNKS = "lockstep.chunks";
}

/// Value of [`GEN_AI_PROVIDER_NAME`].
pub const PROVIDER: &str = "lockstep";

/// The conventions' name for a choice's end.
pub fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

/// Makes one attribute.
pub(crate) fn pair(name: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(name, value)
}
