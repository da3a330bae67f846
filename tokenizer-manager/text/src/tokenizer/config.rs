//! `tokenizer_config.json` and the files beside it.

use std::path::Path;

use lockstep_files::LARGEST_CONFIG;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::TokenizerError;

/// A model directory's settings of its tokenizer, besides `tokenizer.json`. Every file is
/// optional.
#[derive(Debug, Clone, Default)]
pub struct TokenizerConfig {
    /// The named special tokens.
    pub special_tokens: SpecialTokens,
    /// Chat templates. `chat_template.jinja` replaces the default template of
    /// `tokenizer_config.json`, `chat_template.json` serves where neither has one, and `additional_chat_templates/NAME.jinja` replaces the template
    /// NAME.
    pub chat_templates: Vec<NamedTemplate>,
    /// Maximum input that the model was trained for, in tokens; `None` unless the file gives a
    /// sensible number.
    pub model_max_length: Option<u64>,
    /// Tokens of `added_tokens_decoder`, in the order of ids.
    pub(super) added_tokens: Vec<AddedToken>,
    /// BOS and EOS around a text, if the tokenizer's class decides this instead of
    /// `tokenizer.json`.
    pub(super) frame: Option<Frame>,
}

/// Folder of further templates, suffix of their files, and maximum number of files read.
const MORE_TEMPLATES: &str = "additional_chat_templates";
const TEMPLATE: &str = ".jinja";
const MOST_TEMPLATES: usize = 64;

/// A chat template and its name (`default` if it has none).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTemplate {
    /// The name, such as `default` or `tool_use`.
    pub name: String,
    /// Jinja source.
    pub source: String,
}

/// The special tokens that have a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    named: Vec<(String, String)>,
    additional: Vec<String>,
}

impl SpecialTokens {
    /// Returns the token of a role such as `bos_token`, `eos_token` or `pad_token`.
    #[must_use]
    pub fn get(&self, role: &str) -> Option<&str> {
        self.named
            .iter()
            .find(|(name, _)| name == role)
            .map(|(_, token)| token.as_str())
    }

    /// Returns pairs of role and token; these are the variables that a chat template sees.
    #[must_use]
    pub fn named(&self) -> &[(String, String)] {
        &self.named
    }

    /// Returns all tokens, those without a role included.
    pub fn contents(&self) -> impl Iterator<Item = &str> {
        self.named
            .iter()
            .map(|(_, token)| token.as_str())
            .chain(self.additional.iter().map(String::as_str))
    }

    fn add_from(&mut self, fields: &Map<String, Value>) {
        for (name, value) in fields {
            if !name.ends_with("_token") || self.get(name).is_some() {
                continue;
            }
            if let Some(token) = token_content(value) {
                self.named.push((name.clone(), token.to_owned()));
            }
        }
        if let Some(Value::Array(tokens)) = fields.get("additional_special_tokens") {
            for token in tokens.iter().filter_map(token_content) {
                if !self.additional.iter().any(|known| known == token) {
                    self.additional.push(token.to_owned());
                }
            }
        }
    }
}

/// Tokens that transformers' Llama-like tokenizer classes put around a text. They override
/// `tokenizer.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub bos: bool,
    pub eos: bool,
}

impl TokenizerConfig {
    /// Reads the files of a model directory.
    ///
    /// # Errors
    /// [`TokenizerError`] for files that exist but cannot be read or parsed.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let mut config = Self::default();
        if let Some(fields) = read_object(dir, "tokenizer_config.json")? {
            config.read_fields(&fields, dir)?;
        }
        // Older repositories have the roles only in this file.
        if let Some(fields) = read_object(dir, "special_tokens_map.json")? {
            config.special_tokens.add_from(&fields);
        }
        config.read_template_files(dir)?;
        Ok(config)
    }

    fn read_fields(
        &mut self,
        fields: &Map<String, Value>,
        dir: &Path,
    ) -> Result<(), TokenizerError> {
        self.special_tokens.add_from(fields);
        self.model_max_length = fields.get("model_max_length").and_then(Value::as_u64);
        self.frame = frame(fields);
        let invalid = |message: &str| TokenizerError::Parse {
            path: dir.join("tokenizer_config.json"),
            message: message.to_owned(),
        };
        match fields.get("chat_template") {
            None | Some(Value::Null) => {}
            Some(Value::String(source)) => self.set_template("default", source),
            Some(Value::Array(list)) => {
                for entry in list {
                    let text = |key: &str| entry.get(key).and_then(Value::as_str);
                    let (Some(name), Some(source)) = (text("name"), text("template")) else {
                        return Err(invalid(
                            "each entry of chat_template needs the strings \"name\" and \"template\"",
                        ));
                    };
                    self.set_template(name, source);
                }
            }
            Some(_) => return Err(invalid("chat_template must be a string or a list")),
        }
        if let Some(Value::Object(tokens)) = fields.get("added_tokens_decoder") {
            let mut added = Vec::with_capacity(tokens.len());
            for (id, token) in tokens {
                let id: u32 = id
                    .parse()
                    .map_err(|_| invalid("the keys of added_tokens_decoder must be token ids"))?;
                let token: AddedToken = serde_json::from_value(token.clone())
                    .map_err(|e| invalid(&format!("added token {id}: {e}")))?;
                added.push((id, token));
            }
            added.sort_by_key(|(id, _)| *id);
            self.added_tokens = added.into_iter().map(|(_, token)| token).collect();
        }
        Ok(())
    }

    fn read_template_files(&mut self, dir: &Path) -> Result<(), TokenizerError> {
        // Multimodal models have their only template in this file, or repeat it there.
        let of_processor = read_object(dir, "chat_template.json")?;
        let of_processor = of_processor
            .as_ref()
            .and_then(|file| file.get("chat_template"));
        let is_default = |template: &NamedTemplate| template.name == "default";
        if let Some(source) = of_processor.and_then(Value::as_str)
            && !self.chat_templates.iter().any(is_default)
        {
            self.set_template("default", source);
        }
        if let Some(source) = read_optional(dir, "chat_template.jinja")? {
            self.set_template("default", &source);
        }
        let Ok(entries) = std::fs::read_dir(dir.join(MORE_TEMPLATES)) else {
            return Ok(());
        };
        let mut files: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|file| file.ends_with(TEMPLATE))
            .take(MOST_TEMPLATES)
            .collect();
        files.sort();
        for file in files {
            if let (Some(name), Some(source)) = (
                file.strip_suffix(TEMPLATE),
                read_optional(dir, &format!("{MORE_TEMPLATES}/{file}"))?,
            ) {
                self.set_template(name, &source);
            }
        }
        Ok(())
    }

    fn set_template(&mut self, name: &str, source: &str) {
        self.chat_templates.retain(|template| template.name != name);
        self.chat_templates.push(NamedTemplate {
            name: name.to_owned(),
            source: source.to_owned(),
        });
    }
}

/// Returns the text of a token, which is a string or an object with `content`.
fn token_content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Returns the frame that the tokenizer's class decides. transformers' Llama, Gemma and Cohere
/// classes replace the post-processor by one that follows `add_bos_token` and `add_eos_token`
/// (`update_post_processor`); other classes ignore both.
fn frame(fields: &Map<String, Value>) -> Option<Frame> {
    let class = fields.get("tokenizer_class").and_then(Value::as_str)?;
    let framed = ["Llama", "CodeLlama", "Gemma", "Cohere"]
        .iter()
        .any(|name| {
            class
                .strip_prefix(name)
                .is_some_and(|rest| matches!(rest, "Tokenizer" | "TokenizerFast"))
        });
    let flag = |name: &str| fields.get(name).and_then(Value::as_bool);
    let (bos, eos) = (flag("add_bos_token"), flag("add_eos_token"));
    (framed && (bos.is_some() || eos.is_some())).then(|| Frame {
        bos: bos.unwrap_or(true),
        eos: eos.unwrap_or(false),
    })
}

fn read_object(dir: &Path, name: &str) -> Result<Option<Map<String, Value>>, TokenizerError> {
    let Some(text) = read_optional(dir, name)? else {
        return Ok(None);
    };
    let parse = |message: String| TokenizerError::Parse {
        path: dir.join(name),
        message,
    };
    let json = lockstep_files::quoted(text.as_bytes());
    match serde_json::from_slice(&json).map_err(|e| parse(e.to_string()))? {
        Value::Object(fields) => Ok(Some(fields)),
        _ => Err(parse("not a JSON object".to_owned())),
    }
}

fn read_optional(dir: &Path, name: &str) -> Result<Option<String>, TokenizerError> {
    lockstep_files::read_text(dir, name, LARGEST_CONFIG).map_err(|source| TokenizerError::Read {
        path: dir.join(name),
        source,
    })
}
