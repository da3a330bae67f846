//! The target's layers that an EAGLE-3 head reads.

use lockstep_types::{ConfigError, ModelConfigError};

use super::OPTION;
use super::folder::{Folder, damaged};
use crate::raw::Raw;

const KEY: &str = "eagle_aux_hidden_state_layer_ids";
/// Object with keys of a head, as SpecForge and SGLang write it.
pub(super) const EAGLE_CONFIG: &str = "eagle_config";

/// Layers whose input is captured, ascending.
///
/// Without an entry in `config.json` they are `(2, n / 2, n - 3)`, as for SafeAILab's heads.
/// The key names layers in two ways. On the top level, as vLLM writes it, a number means the
/// input of that layer. Inside `eagle_config`, as SpecForge and SGLang write it, a number means
/// the output of that layer.
pub(super) fn layers(folder: &Folder, num_layers: usize) -> Result<Vec<usize>, ConfigError> {
    let path = &folder.path;
    let wrong = |error| damaged(path, error);
    let config = &folder.config;
    let inner = config.object(EAGLE_CONFIG).map_err(wrong)?;
    if let Some(inner) = &inner
        && !inner.flag("use_aux_hidden_state", true).map_err(wrong)?
    {
        let remedy = "an EAGLE-3 head reads three layers of the target";
        return Err(wrong(inner.unsupported("use_aux_hidden_state", remedy)));
    }
    let named = match &inner {
        Some(inner) if inner.get(KEY).is_some() => Some((inner, 1)),
        _ => config.get(KEY).is_some().then_some((config, 0)),
    };
    match named {
        Some((raw, shift)) => given(raw, shift, num_layers).map_err(wrong),
        None => standard(num_layers).ok_or_else(|| {
            ConfigError::file(
                OPTION,
                path,
                format!(
                    "an EAGLE-3 head reads the inputs of layers 2, n / 2 and n - 3, and in the \
                     target's {num_layers} layers these are not three. Give a target with at \
                     least 7 layers, or name the layers in the head's config.json as `{KEY}`."
                ),
            )
        }),
    }
}

/// `(2, n / 2, n - 3)` if these are three layers in that order.
fn standard(n: usize) -> Option<Vec<usize>> {
    let layers = vec![2, n / 2, n.checked_sub(3)?];
    ascending(&layers).then_some(layers)
}

fn given(raw: &Raw, shift: usize, num_layers: usize) -> Result<Vec<usize>, ModelConfigError> {
    let layers: Vec<_> = raw
        .token_ids(KEY)?
        .into_iter()
        .map(|id| (id as usize).saturating_add(shift))
        .collect();
    let inside = layers.last().is_some_and(|last| *last < num_layers);
    if layers.len() == 3 && inside && ascending(&layers) {
        return Ok(layers);
    }
    let message = format!(
        "must name three layers in ascending order, of the target's {num_layers} and not the last"
    );
    Err(raw.wrong(KEY, message))
}

fn ascending(layers: &[usize]) -> bool {
    layers.windows(2).all(|pair| pair[0] < pair[1])
}
