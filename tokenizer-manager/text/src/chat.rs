//! Chat templates: rendering of messages as a prompt, with the same result as transformers'
//! `tokenizer.apply_chat_template`.

mod clock;
mod content;
mod continuation;
mod error;
mod jinja;
mod limits;
mod lower;
mod message;
mod message_shape;
mod messages;
mod meter;
mod probe;
mod python;
mod request;
mod roles;
mod source;
#[cfg(test)]
mod tests;
mod thinking;

use std::path::Path;
use std::sync::Arc;

pub use clock::Clock;
pub use content::ContentFormat;
pub use error::{LoadError, TemplateError};
use jinja::Jinja;
pub use limits::TemplateLimits;
use message::Message;
use message_shape::MessageShape;
use minijinja::Value;
pub use request::ChatRequest;

use crate::tokenizer::{NamedTemplate, TokenizerConfig};

/// Options that a template is compiled with.
#[derive(Debug, Clone, Copy, Default)]
pub struct TemplateOptions {
    /// Limits of each rendering.
    pub limits: TemplateLimits,
    /// The clock that `strftime_now` reads.
    pub clock: Clock,
}

/// A model's chat templates, compiled. Cheap to clone; rendering needs no lock and no tokenizer.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    default: Compiled,
    tool_use: Option<Compiled>,
    special_tokens: Vec<(String, String)>,
    limits: TemplateLimits,
}

#[derive(Debug)]
struct Compiled {
    jinja: Jinja,
    shape: MessageShape,
    proven: bool,
}

impl ChatTemplate {
    /// Loads the chat template of a model directory. `None` if the model has none (a base model).
    ///
    /// # Errors
    /// [`LoadError::Tokenizer`] for files that cannot be read, [`LoadError::Template`] for a
    /// faulty template.
    pub fn from_dir(dir: &Path, options: TemplateOptions) -> Result<Option<Self>, LoadError> {
        let config = TokenizerConfig::load(dir)?;
        if config.chat_templates.is_empty() {
            return Ok(None);
        }
        let special_tokens = config.special_tokens.named();
        Ok(Some(Self::new(
            &config.chat_templates,
            special_tokens,
            options,
        )?))
    }

    /// Compiles templates. The template named `default` (or the only one) renders chats. A
    /// template named `tool_use` renders chats with tools. `special_tokens` are the variables
    /// `bos_token`, `eos_token` and so on.
    ///
    /// # Errors
    /// [`TemplateError::Broken`] on a syntax error, or if no template is the default one.
    pub fn new(
        templates: &[NamedTemplate],
        special_tokens: &[(String, String)],
        options: TemplateOptions,
    ) -> Result<Self, TemplateError> {
        let named = |name: &str| templates.iter().find(|template| template.name == name);
        let default = named("default").or(match templates {
            [only] => Some(only),
            _ => None,
        });
        let Some(default) = default else {
            let names: Vec<&str> = templates
                .iter()
                .map(|template| template.name.as_str())
                .collect();
            return Err(TemplateError::Broken {
                message: format!("none of the templates {names:?} is the default"),
            });
        };
        let compile = |template: &NamedTemplate| -> Result<Compiled, TemplateError> {
            let jinja = Jinja::new(&template.source, options.limits, options.clock)?;
            let (shape, proven) = message_shape::detect(&jinja, special_tokens);
            Ok(Compiled {
                jinja,
                shape,
                proven,
            })
        };
        Ok(Self {
            inner: Arc::new(Inner {
                default: compile(default)?,
                tool_use: named("tool_use").map(compile).transpose()?,
                special_tokens: special_tokens.to_vec(),
                limits: options.limits,
            }),
        })
    }

    /// Renders a prompt within the limits of time and memory. A rendering may take as long as
    /// [`TemplateLimits::time`], so a server renders off its event loop.
    ///
    /// # Errors
    /// See [`TemplateError`]; never panics on any messages.
    pub fn render(&self, request: &ChatRequest<'_>) -> Result<String, TemplateError> {
        let inner = &*self.inner;
        request.check(inner.limits.json_depth)?;
        let compiled = self.choose(request);
        let mut messages = messages::normalise(request, compiled.shape)?;
        if request.continue_final_message {
            continuation::mark(&mut messages)?;
        }
        let prompt = compiled
            .jinja
            .render(self.variables(messages, request), request.bytes())
            .map_err(|error| match error {
                TemplateError::Broken { message } if compiled.proven => {
                    TemplateError::Unsuitable { message }
                }
                error => error,
            })?;
        if request.continue_final_message {
            continuation::cut(prompt)
        } else {
            Ok(prompt)
        }
    }

    /// Returns the shape of content that the default template handles.
    #[must_use]
    pub fn content_format(&self) -> ContentFormat {
        self.inner.default.shape.content
    }

    /// Returns true if the template shows tools to the model.
    #[must_use]
    pub fn shows_tools(&self) -> bool {
        let inner = &*self.inner;
        inner
            .tool_use
            .as_ref()
            .unwrap_or(&inner.default)
            .shape
            .shows_tools
    }

    fn choose(&self, request: &ChatRequest<'_>) -> &Compiled {
        match &self.inner.tool_use {
            Some(tool_use) if request.tools.is_some() => tool_use,
            _ => &self.inner.default,
        }
    }

    /// Returns the template's variables. As in transformers, absent `tools` and `documents` are
    /// `none`.
    fn variables(&self, messages: Vec<Message<'_>>, request: &ChatRequest<'_>) -> Value {
        let list =
            |values: Option<&[serde_json::Value]>| values.map_or(Value::from(()), jinja::list_of);
        let messages = messages.into_iter().map(Message::into_value);
        let fixed = [
            ("messages", messages.collect()),
            ("tools", list(request.tools)),
            ("documents", list(request.documents)),
            (
                "add_generation_prompt",
                Value::from(request.add_generation_prompt),
            ),
        ];
        let special = self
            .inner
            .special_tokens
            .iter()
            .map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let extra = request.kwargs.into_iter().flatten();
        let extra = extra.map(|(name, value)| (name.as_str(), jinja::value_of(value)));
        Value::from_pairs(extra.chain(special).chain(fixed))
    }
}
