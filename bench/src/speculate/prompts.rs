//! Prompts by domain, as token ids of the model.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use lockstep_text::{ChatRequest, ChatTemplate, TemplateOptions, Tokenizer};
use lockstep_types::{ConfigError, constraint::Constraint};
use serde::Deserialize;
use serde_json::Value;

/// Prompts inside the program, written by `models/training/bench_prompts.py`.
const OWN: &str = include_str!("prompts.json");

/// Selection of prompts.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The file; `None` for the prompts inside the program.
    pub file: Option<&'a Path>,
    /// Domains to take; empty for all.
    pub domains: &'a [String],
    /// Most prompts of each domain.
    pub per_domain: usize,
}

/// Prompts of some domains.
pub struct Prompts {
    domains: Vec<Domain>,
    source: String,
}

/// The prompts of one domain.
pub struct Domain {
    /// The domain's name.
    pub name: String,
    /// Token ids of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Language of the answers; `None` = any text.
    pub constraint: Option<Arc<Constraint>>,
}

#[derive(Deserialize)]
struct File {
    prompts: Vec<Written>,
}

/// A prompt in one of three forms.
#[derive(Deserialize)]
struct Written {
    domain: String,
    messages: Option<Vec<Value>>,
    prompt: Option<String>,
    prompt_ids: Option<Vec<u32>>,
}

fn wrong(path: &Path, error: &dyn std::error::Error) -> ConfigError {
    ConfigError::file("--prompts", path, error.to_string())
}

impl Prompts {
    /// Loads the prompts that are wanted, in the file's order.
    ///
    /// # Errors
    /// A file without prompts in the right form, a domain without any prompt, or a model
    /// that lacks what the prompts' form needs.
    pub fn load(wanted: Wanted<'_>, model: &Path) -> anyhow::Result<Self> {
        let (text, source) = match wanted.file {
            None => (OWN.to_owned(), "those inside the program".to_owned()),
            Some(path) => {
                let source = path.display().to_string();
                let text = std::fs::read_to_string(path).map_err(|error| wrong(path, &error))?;
                (text, source)
            }
        };
        let file: File = serde_json::from_str(&text).map_err(|error| {
            let path = wanted.file.unwrap_or(Path::new("inside the program"));
            wrong(path, &error)
        })?;
        let encoder = Encoder {
            tokenizer: Tokenizer::load(model)?,
            template: ChatTemplate::from_dir(model, TemplateOptions::default())?,
        };
        let mut known: Vec<&str> = file.prompts.iter().map(|p| p.domain.as_str()).collect();
        known.dedup();
        let mut domains: Vec<Domain> = Vec::new();
        for written in &file.prompts {
            let name = &written.domain;
            if !wanted.domains.is_empty() && !wanted.domains.contains(name) {
                continue;
            }
            let at = domains.iter().position(|domain| domain.name == *name);
            let at = at.unwrap_or_else(|| {
                domains.push(Domain {
                    name: name.clone(),
                    prompts: Vec::new(),
                    constraint: None,
                });
                domains.len() - 1
            });
            let prompts = &mut domains[at].prompts;
            if prompts.len() < wanted.per_domain {
                prompts.push(
                    encoder
                        .encode(written)
                        .with_context(|| format!("{source}: {name}"))?,
                );
            }
        }
        for asked in wanted.domains {
            let found = domains.iter().any(|domain| domain.name == *asked);
            require!(
                found,
                "no prompt of {source} is of the domain {asked}; there are: {}",
                known.join(", ")
            );
        }
        require!(!domains.is_empty(), "{source} has no prompt");
        Ok(Self { domains, source })
    }

    /// Adds a twin of each domain, right behind it, whose answers are held to `constraint`.
    pub fn constrain(&mut self, constraint: &Arc<Constraint>) {
        let domains = std::mem::take(&mut self.domains).into_iter();
        let both = |domain: Domain| {
            let twin = Domain {
                name: format!("{} as JSON", domain.name),
                prompts: domain.prompts.clone(),
                constraint: Some(constraint.clone()),
            };
            [domain, twin]
        };
        self.domains = domains.flat_map(both).collect();
    }

    /// The domains, in the file's order, each with at least one prompt.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// Source of the prompts, for people.
    pub fn source(&self) -> String {
        self.source.clone()
    }

    /// Tokens of the longest prompt.
    pub fn longest(&self) -> usize {
        let all = self.domains.iter().flat_map(|domain| &domain.prompts);
        all.map(Vec::len).max().unwrap_or(0)
    }
}

impl Domain {
    /// The domain's prompts in batches of `size`. The last batch is left out if it is not
    /// full; an only batch is filled up from the beginning.
    pub fn batches(&self, size: usize) -> Vec<Vec<&[u32]>> {
        let count = (self.prompts.len() / size).max(1) * size;
        let prompts: Vec<&[u32]> = self
            .prompts
            .iter()
            .map(Vec::as_slice)
            .cycle()
            .take(count)
            .collect();
        prompts.chunks(size).map(<[_]>::to_vec).collect()
    }
}

struct Encoder {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Encoder {
    fn encode(&self, written: &Written) -> anyhow::Result<Vec<u32>> {
        let ids = match (&written.messages, &written.prompt, &written.prompt_ids) {
            (_, _, Some(ids)) => ids.clone(),
            (Some(messages), ..) => {
                let template = self.template.as_ref();
                let template = template.context("the model has no chat template for messages")?;
                let chat = ChatRequest {
                    messages,
                    add_generation_prompt: true,
                    ..ChatRequest::default()
                };
                self.tokenizer.encode(&template.render(&chat)?, false)?
            }
            (None, Some(text), None) => self.tokenizer.encode(text, true)?,
            (None, None, None) => Vec::new(),
        };
        require!(!ids.is_empty(), "a prompt is empty");
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_full() {
        let domain = Domain {
            name: "a".into(),
            prompts: (0..5).map(|id| vec![id]).collect(),
            constraint: None,
        };
        let ids = |size| -> Vec<Vec<u32>> {
            let batches = domain.batches(size);
            batches
                .iter()
                .map(|batch| batch.iter().map(|ids| ids[0]).collect())
                .collect()
        };
        assert_eq!(ids(2), [[0, 1], [2, 3]]);
        assert_eq!(ids(5), [[0, 1, 2, 3, 4]]);
        assert_eq!(ids(7), [[0, 1, 2, 3, 4, 0, 1]]);
    }
}
