//! The table of routes: the router, and the two routes that describe the table.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    response::Response,
    routing::{delete, get, post},
};

use super::{
    adapters, admin, anthropic, corpora, info, json, loads, native,
    openai::{chat, completions, models, responses},
    openapi::{self, Route},
    requests, speculation, tokenize, weights,
};
use crate::{app::App, error::ApiResult};

macro_rules! routes {
    ($(#[$meta:meta])* $function:ident $table:ident
     $($method:ident $path:literal $handler:path, $summary:literal;)*) => {
        $(#[$meta])*
        pub(super) const $table: &[Route] = &[$(Route {
            method: stringify!($method),
            path: $path,
            summary: $summary,
        }),*];

        $(#[$meta])*
        pub(super) fn $function() -> Router<Arc<App>> {
            Router::new()$(.route($path, $method($handler)))*
        }
    };
}

routes! {
    /// Routes open to every client.
    clients CLIENTS
    get "/" index, "A page for people.";
    get "/openapi.json" describe, "This description.";
    post "/v1/chat/completions" chat::create, "The next message of a conversation, as OpenAI has it.";
    post "/v1/completions" completions::create, "What follows a prompt, as OpenAI has it.";
    post "/v1/responses" responses::create, "The next items of a conversation, as OpenAI has it; nothing is stored.";
    post "/v1/messages" anthropic::create, "The next message of a conversation, as Anthropic has it.";
    post "/v1/messages/count_tokens" anthropic::count, "The tokens that such a conversation has.";
    get "/v1/models" models::list, "The model, by each of its names, and its adapters.";
    get "/v1/models/{*id}" models::retrieve, "The model by one of its names, or an adapter.";
    post "/tokenize" tokenize::tokenize, "The tokens of a prompt or of messages.";
    post "/detokenize" tokenize::detokenize, "The text of tokens.";
    post "/generate" native::generate, "What follows a prompt, as SGLang has it.";
    get "/health" admin::health, "200 if a forward step runs on every rank; needs no key.";
    get "/ping" admin::health, "As /health.";
    get "/health_generate" admin::health_generate, "As /health, after a step of its own.";
    get "/version" info::version, "The program's version.";
    get "/model_info" info::model_info, "The model, as SGLang has it.";
    get "/get_model_info" info::model_info, "As /model_info.";
    get "/server_info" info::server_info, "The configuration and the load.";
    get "/get_server_info" info::server_info, "As /server_info.";
    get "/tokenizer_info" info::tokenizer_info, "Special tokens and chat template, as vLLM has it.";
    get "/props" info::props, "Context, places and chat template, as llama.cpp has it.";
    get "/load" loads::in_flight, "Requests in progress, as vLLM has it.";
    get "/get_load" loads::get_load, "The load of each rank, as SGLang's router reads it.";
    get "/v1/loads" loads::loads, "The load, as SGLang's gateway reads it.";
    get "/speculation" speculation::show, "How deep is drafted, and what that takes.";
    get "/ngram/corpus" corpora::list, "The texts that are drafted from.";
    get "/list_external_corpora" corpora::list_external, "The same in SGLang's words.";
    get "/metrics" admin::metrics, "Figures in Prometheus' text format.";
}

routes! {
    /// Routes for operators, which change the server for everybody.
    operators OPERATORS
    get "/flush_cache" admin::get_flush_cache, "Empties the prefix cache; not for browsers.";
    post "/flush_cache" admin::flush_cache, "Empties the prefix cache.";
    get "/requests" requests::list, "Requests that run and wait, without their texts.";
    post "/abort_request" admin::abort_request, "Ends a request by its id, or all.";
    post "/speculation" speculation::set, "Pins or caps how deep is drafted.";
    post "/ngram/corpus" corpora::add, "Adds a text to draft from.";
    delete "/ngram/corpus/{*name}" corpora::remove, "Removes one.";
    post "/add_external_corpus" corpora::add_external, "Adds a text, in SGLang's words.";
    post "/remove_external_corpus" corpora::remove_external, "Removes one, in SGLang's words.";
    post "/v1/load_lora_adapter" adapters::load, "Loads an adapter, or another one of its name.";
    post "/v1/unload_lora_adapter" adapters::unload, "Unloads one.";
    post "/load_lora_adapter" adapters::load, "As /v1/load_lora_adapter.";
    post "/unload_lora_adapter" adapters::unload, "As /v1/unload_lora_adapter.";
    post "/update_weights_from_disk" weights::update_from_disk, "Other weights of the same shapes.";
}

/// `GET /`.
async fn index(State(app): State<Arc<App>>) -> Response {
    info::index(&app, CLIENTS.iter().chain(OPERATORS))
}

/// `GET /openapi.json`.
async fn describe(State(app): State<Arc<App>>) -> ApiResult<Response> {
    json(&openapi::document(
        &app,
        [("clients", CLIENTS), ("operators", OPERATORS)],
    ))
}
