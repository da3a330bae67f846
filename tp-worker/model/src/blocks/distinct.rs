//! Values that layers share, each once: shapes of buffers, and rotary tables.

/// Returns each distinct value of `values` once, in the order of first occurrence.
pub(super) fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut each = Vec::new();
    for value in values {
        if !each.contains(&value) {
            each.push(value);
        }
    }
    each
}

/// Returns the index of `value` in `all`, which must contain it.
pub(super) fn place_of<T: PartialEq>(all: &[T], value: &T) -> usize {
    all.iter()
        .position(|other| other == value)
        .unwrap_or_default()
}
