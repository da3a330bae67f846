//! Layer types: the kind of attention of each layer, as transformers 5 names it.

use lockstep_types::ModelConfigError;

use crate::raw::Raw;

/// Key of the list.
pub(super) const KEY: &str = "layer_types";

/// Kind of a layer's attention, as in `layer_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerType {
    /// Full attention, over the whole text.
    Full,
    /// Sliding-window attention.
    Sliding,
}

impl LayerType {
    /// Name of the kind in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Sliding => "sliding_attention",
        }
    }
}

/// Gives `config` the list if it has none: every layer slides but those whose number, counted from
/// one, is a multiple of `full`.
pub(super) fn fill(config: &mut Raw, depth: usize, full: usize) {
    let kind = |layer: usize| match (layer + 1).is_multiple_of(full) {
        true => LayerType::Full.name(),
        false => LayerType::Sliding.name(),
    };
    if config.get(KEY).is_none() {
        let kinds: Vec<_> = (0..depth).map(kind).collect();
        config.put(KEY, kinds.into());
    }
}

/// Reads the kind of each of `depth` layers. A model that names none has full attention in all
/// layers.
///
/// # Errors
/// The errors of [`named`].
pub(super) fn read(config: &Raw, depth: usize) -> Result<Vec<LayerType>, ModelConfigError> {
    Ok(named(config, depth)?.unwrap_or_else(|| vec![LayerType::Full; depth]))
}

/// Reads the kind of each of `depth` layers; `None` if none are named.
///
/// # Errors
/// [`ModelConfigError`]: there are more or fewer than `depth` names, or a kind is not served.
pub(super) fn named(
    config: &Raw,
    depth: usize,
) -> Result<Option<Vec<LayerType>>, ModelConfigError> {
    let kinds = [LayerType::Full, LayerType::Sliding];
    let kinds = kinds.map(|kind| (kind.name(), kind));
    each(config, depth, &kinds)
}

/// Says of each of `depth` layers if it is recurrent, in a family whose kinds are `kinds`; `None` if
/// none are named.
///
/// # Errors
/// The errors of [`named`].
pub(super) fn recurrent(
    config: &Raw,
    depth: usize,
    kinds: &[(&str, bool)],
) -> Result<Option<Vec<bool>>, ModelConfigError> {
    each(config, depth, kinds)
}

/// Reads what stands for the name of each of `depth` layers in `kinds`; `None` if none are named.
fn each<T: Copy>(
    config: &Raw,
    depth: usize,
    kinds: &[(&str, T)],
) -> Result<Option<Vec<T>>, ModelConfigError> {
    let Some(value) = config.get(KEY) else {
        return Ok(None);
    };
    let names = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if names.len() != depth {
        let message = format!("names {} layers, and the model has {depth}", names.len());
        return Err(config.wrong(KEY, message));
    }
    let kind = |name: &serde_json::Value| {
        let found = kinds.iter().find(|(kind, _)| name == kind);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let remedy = format!("layers of the kind {name} are not served");
            config.unsupported(KEY, remedy)
        })
    };
    names.iter().map(kind).collect::<Result<_, _>>().map(Some)
}
