//! Sliding windows: the layers that attend to the nearest positions alone.

use std::num::NonZeroUsize;

use lockstep_types::ModelConfigError;

use super::layer_types::{self, LayerType};
use crate::raw::Raw;

const WINDOW: &str = "sliding_window";
const USED: &str = "use_sliding_window";
const FIRST: &str = "max_window_layers";

/// Rule by which a family's layers have windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// No layer has a window, whatever `config.json` says.
    Never,
    /// All layers have the window `sliding_window`, if there is one.
    Always,
    /// All layers have the window `sliding_window` if `use_sliding_window` is set.
    IfUsed,
    /// The layers of which `layer_types` says so have the window `sliding_window`.
    Typed,
    /// Qwen's: the layers of which `layer_types` says so have the window `sliding_window`, if
    /// `use_sliding_window` is set. Without `layer_types` they are those from
    /// `max_window_layers` on.
    Chosen,
}

impl Windows {
    /// Reads the window of each of `depth` layers. A window that no text fills is none.
    ///
    /// # Errors
    /// [`ModelConfigError`]: a key is damaged, or keys contradict each other.
    pub fn read(
        self,
        config: &Raw,
        depth: usize,
    ) -> Result<Vec<Option<NonZeroUsize>>, ModelConfigError> {
        let longest = config.required("max_position_embeddings")?;
        let slides = match self {
            Self::Never => vec![false; depth],
            Self::Always => vec![true; depth],
            Self::IfUsed => vec![config.flag(USED, false)?; depth],
            Self::Typed => {
                let types = layer_types::read(config, depth)?.into_iter();
                types.map(|kind| kind == LayerType::Sliding).collect()
            }
            Self::Chosen => chosen(config, depth)?,
        };
        if !slides.contains(&true) {
            return Ok(vec![None; depth]);
        }
        if self == Self::Typed && config.get(WINDOW).is_none() {
            return Err(config.wrong(WINDOW, "is missing, and layers have sliding windows"));
        }
        let window = config.size(WINDOW)?.filter(|window| *window < longest);
        let window = window.and_then(NonZeroUsize::new);
        let layers = slides.into_iter().map(|slides| window.filter(|_| slides));
        Ok(layers.collect())
    }
}

/// Says of each layer if it has the window, by the rule of [`Windows::Chosen`].
fn chosen(config: &Raw, depth: usize) -> Result<Vec<bool>, ModelConfigError> {
    let used = config.flag(USED, false)? && config.get(WINDOW).is_some();
    let Some(types) = layer_types::named(config, depth)? else {
        let first = match config.get(FIRST) {
            Some(first) if first == 0 => 0,
            _ => config.required(FIRST)?,
        };
        return Ok((0..depth).map(|layer| used && layer >= first).collect());
    };
    let slides: Vec<bool> = types
        .into_iter()
        .map(|kind| kind == LayerType::Sliding)
        .collect();
    if slides.contains(&true) && !used {
        let message = format!(
            "names layers with sliding windows, and there is none: give `{WINDOW}` its size and \
             set `{USED}`, or name these layers {}",
            LayerType::Full.name()
        );
        return Err(config.wrong(layer_types::KEY, message));
    }
    Ok(slides)
}
