//! What the environment says of the machine that is played.

/// The number in the variable `name`, or `default` where it isn't set.
///
/// # Panics
/// Where it is something else than a number.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{name} is `{text}`: give a number"))
}

/// Number of devices.
pub(crate) fn devices() -> u64 {
    number("FAKE_CUDA_DEVICES", 2)
}

/// Bytes of memory of every device.
pub(crate) fn memory() -> usize {
    number("FAKE_CUDA_MEMORY", 256 << 20) as usize
}

/// The sanitizer that kernels are compiled for, if any.
///
/// # Panics
/// Where it is none that exists.
pub(crate) fn sanitizer() -> Option<String> {
    let name = std::env::var("FAKE_CUDA_SANITIZE").ok()?;
    let known = ["thread", "address", "undefined"].contains(&name.as_str());
    assert!(
        known,
        "FAKE_CUDA_SANITIZE is `{name}`: give thread, address or undefined"
    );
    Some(name)
}
