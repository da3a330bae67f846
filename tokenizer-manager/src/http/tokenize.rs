//! `/tokenize` and `/detokenize`, with the fields of both vLLM and SGLang.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use lockstep_text::{EncodeError, Tokenizer};
use lockstep_types::sampling::token_in_vocabulary;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{
    body::Json,
    json,
    json::{OneOrMany, Prompt},
    openai::AskedModel,
};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    submission::{ToolNames, check_messages, check_tools, count},
    text::{Conversation, most_counted},
};

/// Body of `/tokenize`: a text, several texts or a conversation.
#[derive(Deserialize)]
pub(super) struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<OneOrMany<String>>,
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    add_special_tokens: Option<bool>,
    return_token_strs: Option<bool>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Nested<T> {
    One(T),
    Many(Vec<T>),
}

#[derive(Serialize)]
struct Tokenized<'a> {
    count: Nested<usize>,
    max_model_len: usize,
    tokens: Nested<&'a [u32]>,
    token_strs: Option<Spelled<'a>>,
}

/// Tokens in the vocabulary's spelling; each text is made when it is written.
struct Spelled<'a> {
    tokenizer: &'a Tokenizer,
    ids: &'a [u32],
}

impl Serialize for Spelled<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spell = |id: &u32| self.tokenizer.id_to_token(*id).unwrap_or_default();
        serializer.collect_seq(self.ids.iter().map(spell))
    }
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    Json(mut request): Json<TokenizeRequest>,
) -> ApiResult<Response> {
    if request.model.is_some() {
        AskedModel::check(&app, request.model.as_deref()).await?;
    }
    let special = request.add_special_tokens;
    let (texts, is_list, special) = match (request.prompt.take(), request.messages.take()) {
        (Some(prompt), None) => {
            let is_list = matches!(prompt, OneOrMany::Many(_));
            (prompt.into_vec(), is_list, special.unwrap_or(true))
        }
        (None, Some(messages)) => {
            let text = rendered(&app, &mut request, messages).await?;
            (vec![text], false, special.unwrap_or(false))
        }
        _ => {
            return Err(ApiError::invalid(
                "prompt",
                "Either 'prompt' or 'messages' must be given.",
            ));
        }
    };
    count(
        "prompt",
        texts.len(),
        app.config.server.limits.request.prompts,
    )?;
    let mut left = most_counted(&app.config.server);
    let mut lists = Vec::with_capacity(texts.len());
    for text in texts {
        let ids = encode(&app, text, special, left).await?;
        left -= ids.len();
        lists.push(ids);
    }
    let spelled = match lists.as_slice() {
        [ids] if request.return_token_strs == Some(true) && !is_list => Some(Spelled {
            tokenizer: &app.text.tokenizer,
            ids,
        }),
        _ => None,
    };
    json(&Tokenized {
        count: nested(lists.iter().map(Vec::len).collect(), is_list),
        max_model_len: app.config.server.context_length,
        tokens: nested(lists.iter().map(Vec::as_slice).collect(), is_list),
        token_strs: spelled,
    })
}

/// Returns the only value, or a list if the request was a list.
fn nested<T>(mut values: Vec<T>, is_list: bool) -> Nested<T> {
    match values.pop() {
        Some(only) if !is_list => Nested::One(only),
        last => {
            values.extend(last);
            Nested::Many(values)
        }
    }
}

async fn rendered(
    app: &App,
    request: &mut TokenizeRequest,
    messages: Vec<Value>,
) -> ApiResult<String> {
    count(
        "messages",
        messages.len(),
        app.config.server.limits.request.messages,
    )?;
    check_messages(&messages)?;
    check_tools(
        request.tools.as_deref().unwrap_or_default(),
        &app.config.server.limits.request,
        &ToolNames::CHAT,
    )?;
    let continue_final_message = request.continue_final_message.unwrap_or(false);
    let conversation = Conversation {
        messages,
        tools: request.tools.take().filter(|tools| !tools.is_empty()),
        add_generation_prompt: request
            .add_generation_prompt
            .unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs: request.chat_template_kwargs.take(),
    };
    text_of(app, conversation).await
}

/// Returns the number of tokens that a conversation has as a prompt.
///
/// # Errors
/// 400 for messages that do not suit the template, or too many tokens to count.
pub(super) async fn count_tokens(app: &App, conversation: Conversation) -> ApiResult<usize> {
    let text = text_of(app, conversation).await?;
    let most = most_counted(&app.config.server);
    Ok(encode(app, text, false, most).await?.len())
}

/// Renders a conversation that has few enough tokens to count.
async fn text_of(app: &App, conversation: Conversation) -> ApiResult<String> {
    let least = app.text.tokenizer.min_tokens(conversation.text_bytes());
    let most = most_counted(&app.config.server);
    if least > most {
        let error = EncodeError::TooLong {
            at_least: least,
            limit: most,
            exact: false,
        };
        return Err(ApiError::invalid("messages", error.to_string()));
    }
    app.text.render(conversation).await
}

/// Tokenizes a text; more than `most` tokens are an error.
async fn encode(app: &App, text: String, special: bool, most: usize) -> ApiResult<Vec<u32>> {
    let tokenizer = app.text.tokenizer.clone();
    let bytes = text.len();
    let work = move || tokenizer.encode_bounded(&text, special, most);
    let encoded = app.text.pool.run_aside(bytes, work).await?;
    encoded.map_err(|error| ApiError::invalid("prompt", error.to_string()))
}

/// Body of `/detokenize`: the tokens of one text, or of several.
#[derive(Deserialize)]
pub(super) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Prompt,
    skip_special_tokens: Option<bool>,
}

#[derive(Serialize)]
struct Detokenized<'a> {
    prompt: Nested<&'a str>,
    text: Nested<&'a str>,
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    Json(request): Json<DetokenizeRequest>,
) -> ApiResult<Response> {
    if request.model.is_some() {
        AskedModel::check(&app, request.model.as_deref()).await?;
    }
    let Prompt::Tokens(lists) = request.tokens else {
        return Err(ApiError::invalid(
            "tokens",
            "Invalid value for 'tokens': expected token ids.",
        ));
    };
    count(
        "tokens",
        lists.len(),
        app.config.server.limits.request.prompts,
    )?;
    let vocabulary = u32::try_from(app.config.model.vocab_size).unwrap_or(u32::MAX);
    for id in lists.iter().flatten() {
        token_in_vocabulary("tokens", *id, vocabulary)?;
    }
    // vLLM shows special tokens by default, and SGLang hides them. Hiding is the
    // default here too.
    let skip = request.skip_special_tokens.unwrap_or(true);
    let tokenizer = app.text.tokenizer.clone();
    let is_list = lists.len() > 1;
    let bytes = lists.iter().map(Vec::len).sum::<usize>().saturating_mul(4);
    let work = move || {
        lists
            .iter()
            .map(|ids| tokenizer.decode(ids, skip))
            .collect()
    };
    let texts: Vec<String> = app.text.pool.run_aside(bytes, work).await?;
    let text = || match texts.as_slice() {
        // `[]` stands for one text without tokens.
        [] => Nested::One(""),
        _ => nested(texts.iter().map(String::as_str).collect(), is_list),
    };
    json(&Detokenized {
        prompt: text(),
        text: text(),
    })
}
