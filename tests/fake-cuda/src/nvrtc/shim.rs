//! The headers in front of every kernel, and the object behind it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

/// Folder of the headers, which include each other by name.
pub(super) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shim");
/// The header that includes all others.
pub(super) const NAME: &str = "cuda_on_host.h";
/// The source of what all modules have in common.
const RUNTIME: &str = "runtime.cpp";
/// Texts of the files: a program that was compiled with other texts is compiled anew.
const FILES: [&str; 17] = [
    include_str!("../../shim/cuda_on_host.h"),
    include_str!("../../shim/language.h"),
    include_str!("../../shim/sanitize.h"),
    include_str!("../../shim/fiber.h"),
    include_str!("../../shim/block.h"),
    include_str!("../../shim/warp.h"),
    include_str!("../../shim/tensor_core.h"),
    include_str!("../../shim/async_copy.h"),
    include_str!("../../shim/programmatic.h"),
    include_str!("../../shim/launch.h"),
    include_str!("../../shim/runtime.cpp"),
    include_str!("../../shim/schedule.h"),
    include_str!("../../shim/meetings.h"),
    include_str!("../../shim/multiply.h"),
    include_str!("../../shim/copies.h"),
    include_str!("../../shim/run_block.h"),
    include_str!("../../shim/early.h"),
];

/// A name that depends on the files and on `parts`.
pub(super) fn key<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts.chain(FILES) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// The shim, compiled for one set of flags.
pub(super) struct Shim {
    /// Folder with the headers in precompiled form, since reading them takes the compiler longer
    /// than most kernels do. It is empty if the compiler makes none; the compiler then reads the
    /// headers each time, and also if the precompiled ones are of no use, say of another version.
    pub(super) headers: PathBuf,
    /// Object with what all modules have in common, to link.
    pub(super) runtime: PathBuf,
}

/// Compiles the shim below `folder` if that has not been done.
///
/// # Errors
/// The compiler's messages, or the reason why it could not run.
pub(super) fn compiled(compiler: &str, flags: &[String], folder: &Path) -> Result<Shim, String> {
    let key = key([compiler]
        .into_iter()
        .chain(flags.iter().map(String::as_str)));
    let made = folder.join(format!("shim-{key}"));
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if !made.exists() {
        make(compiler, flags, &made)?;
    }
    Ok(Shim {
        runtime: made.join("runtime.o"),
        headers: made,
    })
}

fn make(compiler: &str, flags: &[String], made: &Path) -> Result<(), String> {
    let own = made.with_extension(process::id().to_string());
    let failed = |error: io::Error| format!("{}: {error}", own.display());
    fs::create_dir_all(&own).map_err(failed)?;
    let run = |arguments: &[&OsStr], from: &str, to: &str| {
        Command::new(compiler)
            // The sanitizers' libraries are for the kernels, not for the compiler.
            .env_remove("LD_PRELOAD")
            .args(flags)
            .args(arguments)
            .arg(Path::new(FOLDER).join(from))
            .arg("-o")
            .arg(own.join(to))
            .output()
    };
    let header = format!("{NAME}.gch");
    // A compiler that makes no such headers does without them.
    let _ = run(&["-x".as_ref(), "c++-header".as_ref()], NAME, &header);
    // It switches threads, so it is fast whatever kernels are.
    let runtime = run(&["-O2".as_ref(), "-c".as_ref()], RUNTIME, "runtime.o");
    let missing = |error| format!("`{compiler}`, the C++ compiler, does not start: {error}");
    let output = runtime.map_err(missing)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    // If another process was faster, its folder stays.
    if fs::rename(&own, made).is_err() {
        let _ = fs::remove_dir_all(&own);
    }
    Ok(())
}
