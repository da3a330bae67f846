//! Settings of the machine that is played, from the environment.

/// The number in the variable `name`, or `default` if it isn't set.
///
/// # Panics
/// Panics if the value is not a number.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{name} is `{text}`: give a number"))
}

/// The number in the variable `name`, if it is set.
///
/// # Panics
/// Panics if the value is not a number.
pub(crate) fn found(name: &str) -> Option<usize> {
    std::env::var_os(name)?;
    Some(number(name, 0) as usize)
}

/// Returns true if `call` has to do nothing, as if the program had forgotten it.
pub(crate) fn forgets(call: &str) -> bool {
    std::env::var("FAKE_CUDA_FORGET").is_ok_and(|forgotten| forgotten == call)
}

/// Script by which `sed` changes sources and headers before they are compiled.
pub(crate) fn edit() -> Option<String> {
    std::env::var("FAKE_CUDA_EDIT").ok()
}

/// Flags for the C++ compiler, after all others.
pub(crate) fn compiler_flags() -> Vec<String> {
    let flags = std::env::var("FAKE_CUDA_FLAGS").unwrap_or_default();
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Path of a file that is made once a process has taken memory ten times. Further requests for
/// memory then wait for ever, as on a device that hangs.
pub(crate) fn hang() -> Option<std::path::PathBuf> {
    std::env::var_os("FAKE_CUDA_HANG").map(std::path::PathBuf::from)
}

/// The kernel that touches an illegal address, and the number of the launch that does.
///
/// # Panics
/// Panics if the launch is not a number.
pub(crate) fn fault() -> Option<(String, u64)> {
    let text = std::env::var("FAKE_CUDA_FAULT").ok()?;
    let (kernel, launch) = text.split_once(':').unwrap_or((&text, "1"));
    let launch = launch.parse();
    let launch = launch.unwrap_or_else(|_| panic!("FAKE_CUDA_FAULT is `{text}`: give attend:3"));
    Some((kernel.to_owned(), launch))
}

/// The rank, and the number counted from one, in a variable such as `1:3`.
///
/// # Panics
/// Panics if the value has another form.
pub(crate) fn of_rank(name: &str) -> Option<(usize, u64)> {
    let text = std::env::var(name).ok()?;
    let parsed = text.split_once(':').and_then(|(rank, number)| {
        let numbers = (rank.parse().ok()?, number.parse().ok()?);
        Some(numbers)
    });
    Some(parsed.unwrap_or_else(|| panic!("{name} is `{text}`: give 1:3")))
}

/// Number of devices.
pub(crate) fn devices() -> u64 {
    number("FAKE_CUDA_DEVICES", 4)
}

/// Bytes of memory of every device.
pub(crate) fn memory() -> usize {
    number("FAKE_CUDA_MEMORY", 4 << 30) as usize
}

/// Bytes that are reported as free and are not, as if another program took them just then.
pub(crate) fn hidden() -> usize {
    number("FAKE_CUDA_HIDDEN", 0) as usize
}

/// Bytes of a device that the code of kernels takes, once a kernel is loaded.
pub(crate) fn code() -> usize {
    number("FAKE_CUDA_CODE", 0) as usize
}

/// Bytes of shared memory that a block may have if its kernel asks for them, by compute
/// capability ("CUDA C++ Programming Guide", technical specifications).
pub(crate) fn block_memory() -> usize {
    let kib = match capability() {
        75 => 64,
        80 | 87 => 163,
        86 | 89 | 120 | 121 => 99,
        _ => 227,
    };
    kib << 10
}

/// Compute capability as a number: 90 is 9.0.
pub(crate) fn capability() -> u64 {
    number("FAKE_CUDA_CAPABILITY", 90)
}

/// Architectures that NVRTC compiles for: 90 is sm_90.
///
/// # Panics
/// Panics if one of them is not a number.
pub(crate) fn architectures() -> Vec<i32> {
    let Ok(text) = std::env::var("FAKE_NVRTC_ARCHITECTURES") else {
        return vec![75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];
    };
    let number = |part: &str| {
        let number = part.parse();
        number.unwrap_or_else(|_| panic!("FAKE_NVRTC_ARCHITECTURES is `{text}`: give 80,90"))
    };
    text.split(',').map(number).collect()
}

/// Sanitizers that kernels are compiled with, in the form that compilers take.
///
/// # Panics
/// Panics if there is no sanitizer of such a name.
pub(crate) fn sanitizers() -> Option<String> {
    let names = std::env::var("FAKE_CUDA_SANITIZE").ok()?;
    let known = |name: &str| ["thread", "address", "undefined"].contains(&name);
    assert!(
        names.split(',').all(known),
        "FAKE_CUDA_SANITIZE is `{names}`: give thread, address, undefined or address,undefined"
    );
    Some(names)
}
