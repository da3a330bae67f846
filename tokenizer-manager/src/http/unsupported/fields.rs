//! Table of unsupported fields.

use super::{
    ALL, CHAT, COMPLETIONS, CONVERSATIONS, GENERATE, MESSAGES, NATIVE, OPENAI, RESPONSES, Routes,
    SAMPLING_PARAMS,
};

/// A value that requests nothing, besides null, false and empty values.
#[derive(Clone, Copy)]
pub(super) enum Neutral {
    Nothing,
    Number(f64),
    Text,
    /// `true`, while `false` asks for something.
    True,
}

/// A field that is not supported.
pub(super) struct Field {
    pub name: &'static str,
    pub routes: Routes,
    pub neutral: Neutral,
    /// Advice about the field.
    pub remedy: &'static str,
}

const LEAVE_OUT: &str = "leave it out";
const IN_PARAMS: &str =
    "use 'json_schema', 'regex', 'ebnf' or 'structural_tag' of 'sampling_params'";
const OWN_FORMAT: &str =
    "use 'text.format' of /v1/responses or 'output_config.format' of /v1/messages";
const OBJECT: &str = r#"use 'response_format' of the type "json_object""#;
const IN_MODEL: &str = "name the adapter in 'model'";
const WHOLE: &str =
    "a grammar describes the whole answer here; use 'tools' for calls within a text";
const STATELESS: &str = "nothing is stored here, so send the whole conversation in 'input'";

const fn field(name: &'static str, routes: Routes) -> Field {
    Field {
        name,
        routes,
        neutral: Neutral::Nothing,
        remedy: LEAVE_OUT,
    }
}

const fn neutral(name: &'static str, number: f64) -> Field {
    Field {
        neutral: Neutral::Number(number),
        ..field(name, ALL)
    }
}

const fn instead(name: &'static str, routes: Routes, remedy: &'static str) -> Field {
    Field {
        remedy,
        ..field(name, routes)
    }
}

/// A limit of reasoning, which no route of plain text tells from the answer.
const fn budget(name: &'static str) -> Field {
    Field {
        routes: PLAIN,
        remedy: "use it with /v1/chat/completions, /v1/responses or /v1/messages",
        ..neutral(name, -1.0)
    }
}

/// A variable of chat templates, which no route of plain text renders.
const fn templated(name: &'static str) -> Field {
    instead(name, PLAIN, "use it with /v1/chat/completions")
}

/// A part of the answer of chats that is there unless it is left out.
const fn shown(name: &'static str, routes: Routes, remedy: &'static str) -> Field {
    Field {
        neutral: Neutral::True,
        ..instead(name, routes, remedy)
    }
}

/// `/v1/completions`, `/generate` and its `sampling_params`.
const PLAIN: Routes = Routes(2 | 4 | 8);
const IN_CHATS: &str = "use it with /v1/chat/completions";
const TGI: &str = "use the fields of this API, such as 'response_format' for the 'grammar' of TGI";

/// Unsupported fields of OpenAI, SGLang, vLLM and llama.cpp.
pub(super) const FIELDS: &[Field] = &[
    // Structured output.
    instead("guided_json", NATIVE, IN_PARAMS),
    instead("guided_regex", NATIVE, IN_PARAMS),
    instead("guided_choice", NATIVE, IN_PARAMS),
    instead("structured_outputs", NATIVE, IN_PARAMS),
    instead("response_format", NATIVE, IN_PARAMS),
    instead("json_schema", GENERATE, IN_PARAMS),
    instead("regex", GENERATE, IN_PARAMS),
    instead("guided_json", CONVERSATIONS, OWN_FORMAT),
    instead("guided_regex", CONVERSATIONS, OWN_FORMAT),
    instead("guided_choice", CONVERSATIONS, OWN_FORMAT),
    instead("structured_outputs", CONVERSATIONS, OWN_FORMAT),
    instead("response_format", CONVERSATIONS, OWN_FORMAT),
    instead("output_format", MESSAGES, OWN_FORMAT),
    instead("json_schema", CONVERSATIONS, OWN_FORMAT),
    instead("regex", CONVERSATIONS, OWN_FORMAT),
    instead("guided_grammar", NATIVE, IN_PARAMS),
    instead("grammar", NATIVE, IN_PARAMS),
    instead("ebnf", GENERATE, IN_PARAMS),
    instead("guided_grammar", CONVERSATIONS, OWN_FORMAT),
    instead("grammar", CONVERSATIONS, OWN_FORMAT),
    instead("ebnf", CONVERSATIONS, OWN_FORMAT),
    instead("structural_tag", GENERATE, IN_PARAMS),
    instead("structural_tag", CONVERSATIONS, OWN_FORMAT),
    field("guided_whitespace_pattern", ALL),
    instead("guided_json_object", Routes(1 | 2), OBJECT),
    instead("guided_json_object", NATIVE, IN_PARAMS),
    instead("guided_json_object", CONVERSATIONS, OWN_FORMAT),
    instead("parameters", ALL, TGI),
    instead("grammar_lazy", ALL, WHOLE),
    instead("grammar_triggers", ALL, WHOLE),
    // Adapters.
    instead("lora_path", Routes(1 | 2 | 16 | 32), IN_MODEL),
    instead(
        "lora_path",
        SAMPLING_PARAMS,
        "put it beside 'sampling_params'",
    ),
    instead("lora", Routes(1 | 2 | 16 | 32), IN_MODEL),
    instead("lora_request", Routes(1 | 2 | 16 | 32), IN_MODEL),
    instead("lora", NATIVE, "name the adapter in 'lora_path'"),
    instead("lora_request", NATIVE, "name the adapter in 'lora_path'"),
    // Fields that would change the result.
    field("bad_words", ALL),
    field("allowed_token_ids", ALL),
    field("use_beam_search", ALL),
    field("custom_logit_processor", ALL),
    field("logits_processors", ALL),
    field("stop_regex", ALL),
    field("samplers", ALL),
    neutral("length_penalty", 1.0),
    neutral("typical_p", 1.0),
    neutral("tfs_z", 1.0),
    neutral("top_a", 0.0),
    neutral("mirostat", 0.0),
    neutral("dry_multiplier", 0.0),
    neutral("xtc_probability", 0.0),
    neutral("dynatemp_range", 0.0),
    Field {
        remedy: "use 'repetition_penalty'",
        ..neutral("repeat_penalty", 1.0)
    },
    Field {
        // -1 means no limit, which is the chat route's default.
        neutral: Neutral::Number(-1.0),
        ..instead("n_predict", Routes(1 | 16), "use 'max_tokens'")
    },
    instead("n_predict", COMPLETIONS, "use 'max_tokens'"),
    instead("n_predict", RESPONSES, "use 'max_output_tokens'"),
    instead(
        "n_predict",
        Routes(4 | 8),
        "use 'sampling_params.max_new_tokens'",
    ),
    instead(
        "speculative",
        SAMPLING_PARAMS,
        "put it beside 'sampling_params'",
    ),
    instead(
        "max_tokens",
        SAMPLING_PARAMS,
        "use 'sampling_params.max_new_tokens'",
    ),
    instead(
        "min_tokens",
        SAMPLING_PARAMS,
        "use 'sampling_params.min_new_tokens'",
    ),
    instead(
        "custom_params",
        SAMPLING_PARAMS,
        "leave it out; its 'thinking_budget' is obeyed by /v1/chat/completions",
    ),
    Field {
        routes: SAMPLING_PARAMS,
        ..neutral("stream_interval", 1.0)
    },
    // Fields that would change the prompt.
    instead(
        "truncate_prompt_tokens",
        ALL,
        "send a prompt that fits and leave it out",
    ),
    field("prompt_embeds", ALL),
    field("input_embeds", ALL),
    field("image_data", ALL),
    field("audio_data", ALL),
    field("video_data", ALL),
    field("documents", CHAT),
    field("web_search_options", OPENAI),
    field("prediction", OPENAI),
    field("tools", COMPLETIONS),
    instead(
        "chat_template",
        Routes(1 | 2 | 16 | 32),
        "the operator chooses the template when the server starts, so leave it out",
    ),
    // Fields that would change the form of the answer.
    instead(
        "prompt_logprobs",
        Routes(1 | 16 | 32),
        "leave it out, or use 'echo' and 'logprobs' of /v1/completions",
    ),
    instead("prompt_logprobs", COMPLETIONS, "use 'echo' and 'logprobs'"),
    instead(
        "prompt_logprobs",
        Routes(4 | 8),
        "use 'return_logprob' and 'logprob_start_len'",
    ),
    Field {
        remedy: "use 'logprobs', or 'top_logprobs_num' of /generate",
        ..neutral("n_probs", 0.0)
    },
    budget("thinking_token_budget"),
    budget("thinking_budget_tokens"),
    budget("reasoning_budget_tokens"),
    budget("thinking_budget"),
    templated("chat_template_kwargs"),
    templated("reasoning_effort"),
    templated("reasoning"),
    templated("thinking"),
    templated("enable_thinking"),
    instead("reasoning", MESSAGES, "use 'thinking'"),
    instead("thinking", RESPONSES, "use 'reasoning'"),
    shown("separate_reasoning", CONVERSATIONS, IN_CHATS),
    shown("stream_reasoning", CONVERSATIONS, LEAVE_OUT),
    shown("include_reasoning", RESPONSES, IN_CHATS),
    shown("include_reasoning", MESSAGES, "use 'display' of 'thinking'"),
    field("token_ids_logprob", GENERATE),
    field("return_hidden_states", ALL),
    field("return_token_ids", OPENAI),
    field("return_tokens_as_token_ids", OPENAI),
    field("echo", CHAT),
    field("audio", OPENAI),
    Field {
        neutral: Neutral::Text,
        ..field("modalities", ALL)
    },
    // Fields of other APIs, and of this one where its service runs tools.
    instead("stop", MESSAGES, "use 'stop_sequences'"),
    instead("max_completion_tokens", MESSAGES, "use 'max_tokens'"),
    instead(
        "thread",
        MESSAGES,
        "nothing is stored here, so send the whole conversation in 'messages'",
    ),
    instead(
        "reasoning_effort",
        MESSAGES,
        "use 'thinking', and 'effort' of 'output_config'",
    ),
    field("logprobs", MESSAGES),
    Field {
        routes: MESSAGES,
        ..neutral("n", 1.0)
    },
    field("mcp_servers", MESSAGES),
    instead("previous_response_id", RESPONSES, STATELESS),
    instead("conversation", RESPONSES, STATELESS),
    instead("background", RESPONSES, "stream the answer instead"),
    instead("prompt", RESPONSES, "send its text as 'input'"),
    field("context_management", RESPONSES),
    instead(
        "messages",
        RESPONSES,
        "use 'input', or /v1/chat/completions",
    ),
    instead("max_tokens", RESPONSES, "use 'max_output_tokens'"),
    instead(
        "max_completion_tokens",
        RESPONSES,
        "use 'max_output_tokens'",
    ),
    instead(
        "stop_sequences",
        RESPONSES,
        "use 'stop' with /v1/chat/completions",
    ),
    instead(
        "include_stop_str_in_output",
        RESPONSES,
        "use it with /v1/chat/completions",
    ),
    instead(
        "continue_final_message",
        RESPONSES,
        "use it with /v1/chat/completions",
    ),
    field("moderation", RESPONSES),
    instead("reasoning_effort", RESPONSES, "use 'effort' of 'reasoning'"),
    instead("stop", RESPONSES, "use it with /v1/chat/completions"),
    instead("logprobs", RESPONSES, "use it with /v1/chat/completions"),
    Field {
        routes: RESPONSES,
        remedy: "use it with /v1/chat/completions",
        ..neutral("top_logprobs", 0.0)
    },
    Field {
        routes: RESPONSES,
        ..neutral("n", 1.0)
    },
];
