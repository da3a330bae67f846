//! Values that layers share, each once: shapes of buffers, and rotary tables.

/// All of `values`, each once, in the order of their first places.
pub(super) fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut each = Vec::new();
    for value in values {
        if !each.contains(&value) {
            each.push(value);
        }
    }
    each
}

/// The place of `value` among `all`, which have it.
pub(super) fn place_of<T: PartialEq>(all: &[T], value: &T) -> usize {
    all.iter()
        .position(|other| other == value)
        .unwrap_or_default()
}
