//! Routes that manage corpora, the texts to draft from besides the served ones. Each
//! route exists under this project's name and under SGLang's.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use lockstep_types::{
    drafter::{CorpusCommand, CorpusSize, DrafterCommand, DrafterReply},
    sampling::token_in_vocabulary,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{body::Json, json};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    request_id::{check_id, fresh_id},
};

/// Maximum tokens of one corpus, as in SGLang.
const MOST_TOKENS: usize = 10_000_000;

/// Body of `POST /ngram/corpus`: a corpus as text or as tokens.
#[derive(Deserialize)]
pub(super) struct AddRequest {
    name: String,
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
}

/// Body of `POST /add_external_corpus`, as in SGLang.
#[derive(Deserialize)]
pub(super) struct AddExternalRequest {
    corpus_id: Option<String>,
    documents: Option<Vec<String>>,
    token_chunks: Option<Vec<Vec<u32>>>,
    file_path: Option<Value>,
}

/// Body of `POST /remove_external_corpus`.
#[derive(Deserialize)]
pub(super) struct RemoveExternalRequest {
    corpus_id: String,
}

/// `POST /ngram/corpus`: adds a corpus, and replaces one of the same name.
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Json(request): Json<AddRequest>,
) -> ApiResult<Response> {
    drafts_from_texts(&app)?;
    let token_ids = match (request.text, request.token_ids) {
        (Some(text), None) => joined(&app, vec![text], "text").await?,
        (None, Some(ids)) => ids,
        _ => {
            return Err(ApiError::invalid(
                "text",
                "Exactly one of 'text' and 'token_ids' must be given.",
            ));
        }
    };
    let name = request.name;
    let added = insert(&app, ("name", &name), ("token_ids", token_ids)).await?;
    json(&json!({"name": name, "tokens": added.tokens, "corpora": added.corpora}))
}

/// `GET /ngram/corpus`: lists all corpora.
pub(super) async fn list(State(app): State<Arc<App>>) -> ApiResult<Response> {
    json(&json!({"corpora": sizes(&command(&app, CorpusCommand::List).await?)}))
}

/// `DELETE /ngram/corpus/{name}`.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> ApiResult<Response> {
    let left = command(&app, CorpusCommand::Remove { name: name.clone() }).await?;
    json(&json!({"name": name, "removed": true, "corpora": sizes(&left)}))
}

/// `POST /add_external_corpus`: joins the documents into one corpus.
pub(super) async fn add_external(
    State(app): State<Arc<App>>,
    Json(request): Json<AddExternalRequest>,
) -> ApiResult<Response> {
    let loaded = external(&app, request).await;
    let (name, tokens) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return refusal(error),
    };
    json(&json!({
        "success": true,
        "corpus_id": name,
        "message": format!("Loaded corpus '{name}' with {tokens} tokens."),
        "loaded_token_count": tokens,
    }))
}

/// `POST /remove_external_corpus`.
pub(super) async fn remove_external(
    State(app): State<Arc<App>>,
    Json(request): Json<RemoveExternalRequest>,
) -> ApiResult<Response> {
    let name = request.corpus_id;
    match command(&app, CorpusCommand::Remove { name: name.clone() }).await {
        Ok(_) => json(&json!({"success": true, "message": format!("Removed corpus '{name}'.")})),
        Err(error) => refusal(error),
    }
}

/// `GET /list_external_corpora`.
pub(super) async fn list_external(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let corpora = match command(&app, CorpusCommand::List).await {
        Ok(corpora) => corpora,
        Err(error) => return refusal(error),
    };
    let ids: Vec<&String> = corpora.iter().map(|corpus| &corpus.name).collect();
    let counts = corpora.iter();
    let counts: Map<String, Value> = counts
        .map(|corpus| (corpus.name.clone(), corpus.tokens.into()))
        .collect();
    json(&json!({
        "success": true, "corpus_ids": ids, "corpus_token_counts": counts, "message": "",
    }))
}

async fn external(app: &App, request: AddExternalRequest) -> ApiResult<(String, u64)> {
    drafts_from_texts(app)?;
    if !matches!(request.file_path, None | Some(Value::Null)) {
        return Err(ApiError::unsupported(
            "file_path",
            "Requests cannot name files; send the texts in 'documents'.",
        ));
    }
    let token_ids = match (request.documents, request.token_chunks) {
        (Some(documents), None) => joined(app, documents, "documents").await?,
        (None, Some(chunks)) => chunks.concat(),
        _ => {
            return Err(ApiError::invalid(
                "documents",
                "One of 'documents' and 'token_chunks' must be given.",
            ));
        }
    };
    let name = request.corpus_id.unwrap_or_else(fresh_id);
    let token_ids = ("token_chunks", token_ids);
    let added = insert(app, ("corpus_id", &name), token_ids).await?;
    Ok((name, added.tokens))
}

/// Returns the tokens of all texts, with an end token between any two. Without it, the
/// end of one text would seem to be followed by the beginning of the next.
async fn joined(app: &App, texts: Vec<String>, field: &str) -> ApiResult<Vec<u32>> {
    let end = app.config.model.eos_token_ids.first().copied();
    let tokenizer = app.text.tokenizer.clone();
    let bytes = texts.iter().map(String::len).sum();
    let work = move || {
        let mut all = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            all.extend(end.filter(|_| at > 0));
            let left = MOST_TOKENS.saturating_sub(all.len());
            all.extend(tokenizer.encode_bounded(text, false, left)?);
        }
        Ok(all)
    };
    let encoded: Result<_, lockstep_text::EncodeError> =
        app.text.pool.run_aside(bytes, work).await?;
    encoded.map_err(|error| ApiError::invalid(field, error.to_string()))
}

struct Added {
    tokens: u64,
    corpora: Value,
}

/// Adds a corpus; the name and the tokens come with the names of their request fields.
async fn insert(
    app: &App,
    (name_field, name): (&str, &str),
    (field, token_ids): (&'static str, Vec<u32>),
) -> ApiResult<Added> {
    check_id(name_field, name)?;
    if token_ids.len() > MOST_TOKENS {
        return Err(ApiError::invalid(
            field,
            format!(
                "A corpus of {} tokens; the limit is {MOST_TOKENS}.",
                token_ids.len()
            ),
        ));
    }
    let vocabulary = u32::try_from(app.config.model.vocab_size).unwrap_or(u32::MAX);
    for id in &token_ids {
        token_in_vocabulary(field, *id, vocabulary)?;
    }
    let tokens = token_ids.len() as u64;
    let add = CorpusCommand::Add {
        name: name.to_owned(),
        token_ids,
    };
    let corpora = command(app, add).await?;
    Ok(Added {
        tokens,
        corpora: sizes(&corpora),
    })
}

/// Sends a command and returns all corpora that exist afterwards.
async fn command(app: &App, command: CorpusCommand) -> ApiResult<Vec<CorpusSize>> {
    drafts_from_texts(app)?;
    let command = DrafterCommand::Corpora(command);
    let DrafterReply::Corpora(corpora) = app.scheduler.command_drafter(command).await?;
    Ok(corpora)
}

/// Returns a 400 unless the server drafts from texts.
fn drafts_from_texts(app: &App) -> ApiResult<()> {
    let speculation = &app.config.speculation;
    if speculation.drafts_from_texts {
        return Ok(());
    }
    let instead = match &speculation.algorithm {
        None => "does not speculate".to_owned(),
        Some(name) => format!("drafts with {name}"),
    };
    Err(ApiError::bad_request(format!(
        "Corpora are for servers that draft from texts; this one {instead}. Start it with \
         `--speculative-algorithm NGRAM`."
    )))
}

fn sizes(corpora: &[CorpusSize]) -> Value {
    let size = |corpus: &CorpusSize| json!({"name": corpus.name, "tokens": corpus.tokens});
    corpora.iter().map(size).collect()
}

/// Returns a refusal that has SGLang's fields beside the error object.
fn refusal(error: ApiError) -> ApiResult<Response> {
    let mut body = json!(error.body());
    body["success"] = false.into();
    body["message"] = error.message.clone().into();
    let body = json(&body)?.into_body();
    Ok(error.into_http().map(|_| body))
}
