//! The headers in front of every kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Mutex, PoisonError};

/// Folder of the headers, which include each other by name.
pub(super) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shim");
/// The header that includes all others.
pub(super) const NAME: &str = "cuda_on_host.h";
/// Texts of the headers: a program that was compiled with other texts is compiled anew.
const HEADERS: [&str; 12] = [
    include_str!("../../shim/cuda_on_host.h"),
    include_str!("../../shim/language.h"),
    include_str!("../../shim/sanitize.h"),
    include_str!("../../shim/fiber.h"),
    include_str!("../../shim/block.h"),
    include_str!("../../shim/warp.h"),
    include_str!("../../shim/tensor_core.h"),
    include_str!("../../shim/async_copy.h"),
    include_str!("../../shim/programmatic.h"),
    include_str!("../../shim/run_block.h"),
    include_str!("../../shim/early.h"),
    include_str!("../../shim/launch.h"),
];

/// A name that depends on the headers and on `parts`.
pub(super) fn key<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts.chain(HEADERS) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// A folder with the headers in precompiled form, since reading them takes the compiler longer
/// than most kernels do. It is made below `folder` if missing. `None` if the compiler makes
/// none: it then reads the headers each time. It does so too if the precompiled ones are of no
/// use, say of another version.
pub(super) fn precompiled(compiler: &str, flags: &[String], folder: &Path) -> Option<PathBuf> {
    let key = key([compiler]
        .into_iter()
        .chain(flags.iter().map(String::as_str)));
    let made = folder.join(format!("shim-{key}"));
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if made.exists() {
        return Some(made);
    }
    let own = folder.join(format!("shim-{key}.{}", process::id()));
    fs::create_dir_all(&own).ok()?;
    let output = Command::new(compiler)
        .env_remove("LD_PRELOAD")
        .args(flags)
        .args(["-x", "c++-header"])
        .arg(Path::new(FOLDER).join(NAME))
        .arg("-o")
        .arg(own.join(format!("{NAME}.gch")))
        .output();
    let works = output.is_ok_and(|output| output.status.success());
    // If another process was faster, its folder stays.
    if !works || fs::rename(&own, &made).is_err() {
        let _ = fs::remove_dir_all(&own);
    }
    made.exists().then_some(made)
}
