//! The machine's C++ compiler, and the folder of what it has compiled.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, io, process};

use super::kernels::kernels;
use super::options::Options;
use crate::settings;

/// The shim, whose headers include each other by name.
const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shim");
/// Its texts: what was compiled with others is compiled anew.
const HEADERS: [&str; 9] = [
    include_str!("../../shim/cuda_on_host.h"),
    include_str!("../../shim/language.h"),
    include_str!("../../shim/sanitize.h"),
    include_str!("../../shim/fiber.h"),
    include_str!("../../shim/block.h"),
    include_str!("../../shim/warp.h"),
    include_str!("../../shim/tensor_core.h"),
    include_str!("../../shim/async_copy.h"),
    include_str!("../../shim/launch.h"),
];
/// Kernels read the same bytes as different types, and hide nothing but the
/// names that the shim exports.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    "-include",
];

/// Compiles a program to a shared object, unless it has been already; returns
/// that and the compiler's log.
///
/// # Errors
/// What the compiler says, or why it could not be asked.
pub(super) fn compile(
    name: &str,
    source: &str,
    headers: &[(String, String)],
    options: &Options,
) -> Result<(PathBuf, String), String> {
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut flags: Vec<String> = FLAGS.map(str::to_owned).into();
    flags.push("cuda_on_host.h".to_owned());
    flags.push(format!("-D__CUDA_ARCH__={}", options.arch.number * 10));
    flags.extend(options.passed.iter().cloned());
    if let Some(sanitizer) = settings::sanitizer() {
        flags.push(format!("-fsanitize={sanitizer}"));
        flags.push("-fno-sanitize-recover=undefined".to_owned());
        // Shared arrays lie in a section of their own.
        if sanitizer == "address" {
            flags.push("-fsanitize-sections=cuda_shared".to_owned());
        }
    }
    let source = whole(name, source);
    let key = key(&compiler, &flags, &source, headers);
    let folder = env::var_os("FAKE_CUDA_CACHE").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| concat!(env!("OUT_DIR"), "/kernels").into());
    let object = folder.join(format!("{key}.so"));
    // One at a time, so that threads that want the same compile it once.
    static COMPILING: Mutex<()> = Mutex::new(());
    let _compiling = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    if object.exists() {
        return Ok((object, String::new()));
    }
    // So may other processes: whole objects appear under the final name.
    let own = folder.join(format!("{key}.{}", process::id()));
    let failed = |error: io::Error| format!("{}: {error}", own.display());
    write_all(&own, &source, headers).map_err(failed)?;
    let output = Command::new(&compiler)
        // The sanitizers' libraries are for the kernels.
        .env_remove("LD_PRELOAD")
        .args(&flags)
        .arg(format!("-ffile-prefix-map={}/=", own.display()))
        .args(["-I", SHIM, "-I"])
        .arg(&own)
        .arg(own.join("kernels.cpp"))
        .arg("-o")
        .arg(own.join("kernels.so"))
        .output();
    let missing = |error| format!("`{compiler}`, the C++ compiler, does not start: {error}");
    let output = output.map_err(missing)?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let done = if output.status.success() {
        fs::rename(own.join("kernels.so"), &object).map_err(failed)
    } else {
        Err(log.clone())
    };
    fs::remove_dir_all(&own).map_err(failed)?;
    done.map(|()| (object, log))
}

/// The source under its own name in errors, with its kernels registered. Nothing
/// of it is seen from outside, which lets inline functions have shared arrays:
/// the linker need not merge those.
fn whole(name: &str, source: &str) -> String {
    let begin = format!("namespace {{\n#line 1 \"{name}\"\n");
    let mut whole = format!("{begin}{source}\n}}\n#line 1 \"its kernels\"\n");
    for kernel in kernels(source) {
        let _ = writeln!(
            whole,
            "CUDA_ON_HOST_KERNEL({}, {})",
            kernel.name, kernel.bounds
        );
    }
    whole
}

/// A name for all that the result depends on.
fn key(compiler: &str, flags: &[String], source: &str, headers: &[(String, String)]) -> String {
    let mut hasher = blake3::Hasher::new();
    let named = headers
        .iter()
        .flat_map(|(name, text)| [name.as_str(), text.as_str()]);
    let parts = [compiler, source].into_iter().chain(HEADERS).chain(named);
    for part in parts.chain(flags.iter().map(String::as_str)) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

fn write_all(folder: &Path, source: &str, headers: &[(String, String)]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("kernels.cpp"), source)?;
    for (name, text) in headers {
        let path = folder.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)?;
    }
    Ok(())
}
