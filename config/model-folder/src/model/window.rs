//! Sliding-window attention, which is served only where the window is never full.

use lockstep_types::{Architecture, ModelConfigError};

use crate::raw::Raw;

/// Mistral's window where `config.json` names none, as in transformers.
const MISTRAL_DEFAULT: usize = 4096;

/// The window that some layer attends within, tokens; `None` = all of the text.
fn window(
    config: &Raw,
    architecture: Architecture,
    num_layers: usize,
) -> Result<Option<usize>, ModelConfigError> {
    match architecture {
        Architecture::Llama => Ok(None),
        Architecture::Mistral if config.has("sliding_window") => config.size("sliding_window"),
        Architecture::Mistral => Ok(Some(MISTRAL_DEFAULT)),
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let layers = config.get("layer_types").and_then(|types| types.as_array());
            let slides = match layers {
                Some(types) => types.iter().any(|kind| kind == "sliding_attention"),
                None => {
                    config.flag("use_sliding_window", false)?
                        && config
                            .size("max_window_layers")
                            .map_or(true, |first| first.is_none_or(|first| first < num_layers))
                }
            };
            if slides {
                config.size("sliding_window")
            } else {
                Ok(None)
            }
        }
    }
}

/// Checks that no text of `context` tokens fills the window.
pub(super) fn check(
    config: &Raw,
    architecture: Architecture,
    num_layers: usize,
    context: usize,
) -> Result<(), ModelConfigError> {
    match window(config, architecture, num_layers)? {
        Some(window) if window < context => {
            let remedy = format!(
                "sliding windows are not served, and a context of {context} tokens fills one of \
                 {window}; give --context-length {window} or less, where both are the same"
            );
            Err(config.unsupported("sliding_window", remedy))
        }
        _ => Ok(()),
    }
}
