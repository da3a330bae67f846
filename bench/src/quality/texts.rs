//! The text that is read: a file, or a text that the model writes itself.

use lockstep_local_engine::{LocalEngine, LocalOptions};
use lockstep_text::Tokenizer;
use lockstep_types::request::Request;
use lockstep_types::sampling::SamplingParams;
use lockstep_types::{ConfigError, EngineConfig};

use super::Args;
use crate::report::progress;

/// Texts that the model writes at a time.
pub const AT_ONCE: usize = 16;

/// Windows of tokens, each of `args.window`.
pub fn windows(args: &Args, reference: &EngineConfig) -> anyhow::Result<Vec<Vec<u32>>> {
    let count = args.tokens / args.window;
    let Some(file) = &args.text else {
        progress("letting the model write the text");
        return written(reference, args.window, count);
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| ConfigError::file("--text", file, error.to_string()))?;
    let tokens = Tokenizer::load(&reference.model.path)?.encode(&text, false)?;
    let windows: Vec<Vec<u32>> = tokens
        .chunks_exact(args.window)
        .take(count)
        .map(<[u32]>::to_vec)
        .collect();
    require!(
        !windows.is_empty(),
        "{} has {} tokens, less than one --window of {}",
        file.display(),
        tokens.len(),
        args.window
    );
    Ok(windows)
}

/// Texts sampled at temperature 1, end tokens among them.
fn written(config: &EngineConfig, window: usize, count: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut engine = LocalEngine::start(config, &LocalOptions::default())?;
    let first = config.model.bos_token_id.unwrap_or(0);
    let request = |seed: usize| {
        let sampling = SamplingParams {
            temperature: 1.0,
            seed: seed as u64,
            ignore_eos: true,
            ..SamplingParams::greedy()
        };
        Request {
            generation: sampling.into(),
            ..Request::new(vec![first], (window - 1) as u32)
        }
    };
    let completions = engine.run((0..count).map(request).collect())?;
    Ok(completions
        .into_iter()
        .map(|completion| std::iter::once(first).chain(completion.token_ids).collect())
        .collect())
}
