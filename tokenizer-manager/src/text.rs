//! The model's tokenizer and chat template, and a thread pool for templates and long texts.

use std::{path::Path, sync::Arc};

use lockstep_text::{
    AnswerFormat, ChatRequest, ChatTemplate, LoadError, NamedTemplate, TemplateOptions, Tokenizer,
    TokenizerConfig,
};
use lockstep_types::{AnswersConfig, ServerConfig};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::error::{ApiError, ApiResult};

/// Texts up to this many bytes are worked on in place. It takes a tenth of a
/// millisecond, about as long as moving them to another thread.
const INLINE_BYTES: usize = 512;

/// Size in bytes above which only one body or prompt is worked on at a time, since the
/// result may be several times as large.
pub const LARGE: usize = 1 << 20;

/// Returns the maximum number of tokens counted for a client. The number may exceed the
/// model's context. A client that cuts a text by tokens then learns how much to cut.
pub fn most_counted(server: &ServerConfig) -> usize {
    const MOST: usize = 1 << 20;
    server.context_length.max(MOST)
}

/// The model's tokenizer and chat template.
#[derive(Debug)]
pub struct Text {
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The model's chat template; `None` if the model has none.
    pub template: Option<ChatTemplate>,
    /// Source of the chat template.
    pub template_source: Option<String>,
    /// Formats of the model's answers.
    pub answers: AnswerFormat,
    /// Threads for templates and long texts.
    pub pool: Pool,
}

impl Text {
    /// Loads tokenizer and chat template from the model's folder. `answers` names the parsers of
    /// its answers.
    ///
    /// # Errors
    /// [`LoadError`] names the file, or the parser that does not exist.
    pub fn load(dir: &Path, answers: &AnswersConfig) -> Result<Self, LoadError> {
        let tokenizer = Tokenizer::load(dir)?;
        let templates = TokenizerConfig::load(dir)?.chat_templates;
        let source = |name| source(&templates, name).unwrap_or_default();
        let answers = AnswerFormat::named(
            &answers.tool_call_parser,
            &answers.reasoning_parser,
            &(source("default").to_owned() + source("tool_use")),
            &tokenizer,
        )?;
        Ok(Self {
            template: ChatTemplate::from_dir(dir, TemplateOptions::default())?,
            template_source: self::source(&templates, "default").map(str::to_owned),
            tokenizer,
            answers,
            pool: Pool::new(),
        })
    }

    /// Renders a conversation as a prompt.
    ///
    /// # Errors
    /// 400 if the messages do not suit the template, or the model has no template.
    pub async fn render(&self, chat: Conversation) -> ApiResult<String> {
        let Some(template) = self.template.clone() else {
            return Err(ApiError::invalid(
                "messages",
                "This model has no chat template; use /v1/completions.",
            ));
        };
        let tools = chat.tools.iter().flatten().map(json_bytes).sum::<usize>();
        let bytes = chat.text_bytes().saturating_add(tools);
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
        // Never in place: a template may do anything with messages, however short they
        // are.
        let bytes = bytes.saturating_add(INLINE_BYTES + 1);
        self.pool.run(bytes, render).await?.map_err(|error| {
            if error.is_client_error() {
                ApiError::invalid("messages", error.to_string())
            } else {
                tracing::error!(%error, "the chat template failed");
                ApiError::internal(error.to_string())
            }
        })
    }
}

/// Returns the source of the template of this name. The only template is the default one.
fn source<'a>(templates: &'a [NamedTemplate], name: &str) -> Option<&'a str> {
    let named = templates.iter().find(|template| template.name == name);
    let only = match templates {
        [only] if name == "default" => Some(only),
        _ => None,
    };
    named.or(only).map(|template| template.source.as_str())
}

/// Returns the approximate bytes of a JSON value, whose nesting must be bounded.
pub fn json_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 3,
        Value::Array(items) => 2 + items.iter().map(json_bytes).sum::<usize>(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| name.len() + 4 + json_bytes(value);
            2 + fields.iter().map(field).sum::<usize>()
        }
        _ => 5,
    }
}

/// Messages to render.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// The messages as the client sent them.
    pub messages: Vec<Value>,
    /// Tool definitions.
    pub tools: Option<Vec<Value>>,
    /// True if the prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// True if the prompt ends inside the last message.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub kwargs: Option<Map<String, Value>>,
}

impl Conversation {
    /// Returns the bytes of the messages' texts.
    pub fn text_bytes(&self) -> usize {
        let texts = |content: &Value| match content {
            Value::String(text) => text.len(),
            Value::Array(parts) => {
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                texts.map(str::len).sum()
            }
            _ => 0,
        };
        let messages = self.messages.iter();
        messages.map(|message| texts(&message["content"])).sum()
    }
}

/// A bounded number of threads for work that would block the reactor.
#[derive(Debug)]
pub struct Pool {
    large: Arc<Semaphore>,
    prompts: Arc<Semaphore>,
    asides: Arc<Semaphore>,
}

impl Pool {
    fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            large: Arc::new(Semaphore::new(1)),
            prompts: Arc::new(Semaphore::new(threads)),
            asides: Arc::new(Semaphore::new(1)),
        }
    }

    /// Runs `work` on about `bytes` bytes of a prompt: in place if they are few,
    /// otherwise on another thread once one is free. Work on more than [`LARGE`] bytes
    /// waits for other such work.
    ///
    /// # Errors
    /// 500 if `work` panics.
    pub async fn run<T, F>(&self, bytes: usize, work: F) -> ApiResult<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let large = (bytes > LARGE).then_some(&self.large);
        run(large, &self.prompts, bytes, work).await
    }

    /// Runs `work` on about `bytes` bytes that are no prompt. Such work has one thread
    /// of its own, so that long texts never delay prompts.
    ///
    /// # Errors
    /// 500 if `work` panics.
    pub async fn run_aside<T, F>(&self, bytes: usize, work: F) -> ApiResult<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        run(None, &self.asides, bytes, work).await
    }
}

async fn run<T, F>(
    large: Option<&Arc<Semaphore>>,
    permits: &Arc<Semaphore>,
    bytes: usize,
    work: F,
) -> ApiResult<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    if bytes <= INLINE_BYTES {
        return Ok(work());
    }
    let failed = || ApiError::internal("Working on the request's text failed.");
    let mut held = Vec::new();
    for permits in large.into_iter().chain([permits]) {
        let permit = permits.clone().acquire_owned().await;
        held.push(permit.map_err(|_| failed())?);
    }
    // The work holds the permits, since it goes on after its client leaves.
    let work = move || {
        let _held = held;
        work()
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn prompts_do_not_wait_for_asides() {
        let pool = Pool::new();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let aside = pool.run_aside(usize::MAX, move || held.recv().is_ok());
        let prompt = async {
            let answer = pool.run(usize::MAX, || 7).await;
            release.send(()).expect("it still waits");
            answer
        };
        let (aside, prompt) = tokio::join!(aside, prompt);
        assert_eq!((aside, prompt), (Ok(true), Ok(7)));
    }

    #[tokio::test]
    async fn large_prompts_take_turns_and_short_ones_do_not_wait() {
        let pool = Pool::new();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let first = pool.run(LARGE + 1, move || held.recv().is_ok());
        let second = pool.run(LARGE + 1, || 7);
        let others = async {
            assert_eq!(pool.large.available_permits(), 0);
            let short = pool.run_aside(LARGE, || 1).await;
            release.send(()).expect("it still waits");
            short
        };
        let (first, second, short) = tokio::join!(biased; first, second, others);
        assert_eq!((first, second, short), (Ok(true), Ok(7), Ok(1)));
    }

    #[tokio::test]
    async fn work_whose_client_left_keeps_its_thread() {
        let pool = Pool::new();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (started, begun) = tokio::sync::oneshot::channel();
        let work = move || {
            started.send(()).expect("awaited");
            held.recv().is_ok()
        };
        tokio::select! {
            biased;
            _ = pool.run_aside(usize::MAX, work) => panic!("nothing released it"),
            begun = begun => begun.expect("it runs"),
        }
        assert_eq!(pool.asides.available_permits(), 0);
        release.send(()).expect("it still waits");
        assert_eq!(pool.run_aside(usize::MAX, || 7).await, Ok(7));
    }
}
