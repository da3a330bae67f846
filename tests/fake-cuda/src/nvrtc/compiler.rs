//! The machine's C++ compiler, and the folder that keeps its results.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, io, process};

use super::kernels::kernels;
use super::options::Options;
use super::{edit, shim};
use crate::settings;

/// Compiler flags. Kernels read the same bytes as different types, and export only the names of
/// the shim. Two roundings stay two, even if the machine could do both at once. The second
/// level of optimisation costs compilers more time than it saves.
const FLAGS: [&str; 7] = [
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
];

/// Compiles a program to a shared object, unless the folder has it already. Returns the
/// object's path and the compiler's log.
///
/// # Errors
/// The compiler's messages, or the reason why it could not run.
pub(super) fn compile(
    name: &str,
    source: &str,
    headers: &[(String, String)],
    options: &Options,
) -> Result<(PathBuf, String), String> {
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let (source, headers) = edit::edited(source, headers)?;
    let source = whole(name, &source);
    let general = general_flags();
    let mut flags = general.clone();
    flags.push(format!("-D__CUDA_ARCH__={}", options.arch.number * 10));
    flags.extend(options.passed.iter().cloned());
    let named = headers.iter().flat_map(|(name, text)| [name, text]);
    let parts = [&compiler, &source].into_iter().chain(named);
    let key = shim::key(parts.chain(&flags).map(String::as_str));
    let folder = env::var_os("FAKE_CUDA_CACHE").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| concat!(env!("OUT_DIR"), "/kernels").into());
    let object = folder.join(format!("{key}.so"));
    // Threads that want the same program compile it once; others rarely wait.
    static COMPILING: [Mutex<()>; 16] = [const { Mutex::new(()) }; 16];
    let one = COMPILING[usize::from(key.as_bytes()[0]) % COMPILING.len()].lock();
    let _compiling = one.unwrap_or_else(PoisonError::into_inner);
    if object.exists() {
        return Ok((object, String::new()));
    }
    let shim = shim::compiled(&compiler, &general, &folder)?;
    // Other processes may compile it, too: the final name appears only for whole objects.
    let own = folder.join(format!("{key}.{}", process::id()));
    let failed = |error: io::Error| format!("{}: {error}", own.display());
    write_all(&own, &source, &headers).map_err(failed)?;
    let output = Command::new(&compiler)
        // The sanitizers' libraries are for the kernels, not for the compiler.
        .env_remove("LD_PRELOAD")
        .args(&flags)
        .arg(format!("-ffile-prefix-map={}/=", own.display()))
        .arg("-I")
        .arg(&shim.headers)
        .args(["-include", shim::NAME, "-I", shim::FOLDER, "-I"])
        .arg(&own)
        .arg("-shared")
        .arg(own.join("kernels.cpp"))
        .arg(&shim.runtime)
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

/// Flags that all programs have.
fn general_flags() -> Vec<String> {
    let mut flags: Vec<String> = FLAGS.map(str::to_owned).into();
    // Fused multiply-adds run on the processor, but only those that kernels ask for.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        flags.extend(["-mfma", "-ffp-contract=off"].map(str::to_owned));
    }
    if let Some(sanitizers) = settings::sanitizers() {
        // Sanitizers name lines in their reports.
        flags.push("-g1".to_owned());
        flags.push(format!("-fsanitize={sanitizers}"));
        flags.push("-fno-sanitize-recover=undefined".to_owned());
        // Shared arrays lie in a section of their own.
        if sanitizers.contains("address") {
            flags.push("-fsanitize-sections=cuda_shared".to_owned());
        }
    }
    flags.extend(settings::compiler_flags());
    flags
}

/// The source, under its own name in errors, with its kernels registered. All of it is in an
/// unnamed namespace, so that inline functions may have shared arrays: the linker need not
/// merge those.
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
