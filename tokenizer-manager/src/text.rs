//! The model's tokenizer and chat template, and where long texts are worked on.

use std::path::Path;

use lockstep_text::{ChatRequest, ChatTemplate, TemplateOptions, Tokenizer, TokenizerError};
use tokio::sync::Semaphore;

use crate::error::{ApiError, ApiResult};

/// Texts up to this many bytes are worked on in place: moving them to another
/// thread takes longer.
const INLINE_BYTES: usize = 2048;

/// Text in and out of tokens.
#[derive(Debug)]
pub struct Text {
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The model's chat template, where it has one.
    pub template: Option<ChatTemplate>,
    /// Threads for long texts.
    pub pool: Pool,
}

impl Text {
    /// Loads what the model's folder holds.
    ///
    /// # Errors
    /// [`TokenizerError`] names the file.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        Ok(Self {
            tokenizer: Tokenizer::load(dir)?,
            template: ChatTemplate::from_dir(dir, TemplateOptions::default())?,
            pool: Pool::new(),
        })
    }

    /// Renders a conversation as a prompt.
    ///
    /// # Errors
    /// 400 when the messages do not suit the template, or the model has none.
    pub async fn render(&self, chat: Conversation) -> ApiResult<String> {
        let Some(template) = self.template.clone() else {
            return Err(ApiError::invalid(
                "messages",
                "This model has no chat template; use /v1/completions.",
            ));
        };
        let render = move || {
            template.render(&ChatRequest {
                messages: &chat.messages,
                tools: chat.tools.as_deref(),
                documents: None,
                add_generation_prompt: chat.add_generation_prompt,
                continue_final_message: chat.continue_final_message,
                kwargs: chat.kwargs.as_ref(),
            })
        };
        self.pool.run(chat.bytes, render).await?.map_err(|error| {
            if error.is_client_error() {
                ApiError::invalid("messages", error.to_string())
            } else {
                tracing::error!(%error, "the chat template failed");
                ApiError::internal(error.to_string())
            }
        })
    }
}

/// Messages to render.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// The messages as they came.
    pub messages: Vec<serde_json::Value>,
    /// Tool definitions.
    pub tools: Option<Vec<serde_json::Value>>,
    /// The prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The prompt ends inside the last message.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    /// About how long the conversation is.
    pub bytes: usize,
}

/// A bounded number of threads for work that would hold up the reactor.
#[derive(Debug)]
pub struct Pool {
    permits: Semaphore,
}

impl Pool {
    fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            permits: Semaphore::new(threads),
        }
    }

    /// Runs `work` on about `bytes` bytes of text: here if they are few,
    /// otherwise on another thread once one is free.
    ///
    /// # Errors
    /// 500 if `work` panics.
    pub async fn run<T, F>(&self, bytes: usize, work: F) -> ApiResult<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if bytes <= INLINE_BYTES {
            return Ok(work());
        }
        let failed = || ApiError::internal("Working on the request's text failed.");
        let _permit = self.permits.acquire().await.map_err(|_| failed())?;
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| failed())
    }
}
