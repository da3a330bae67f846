//! Changes of sources before they are compiled, for tests that have to notice.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::settings;

/// Applies the script of `FAKE_CUDA_EDIT` to a source and to its headers, given by name.
///
/// # Errors
/// The messages of `sed`.
pub(super) fn edited(
    source: &str,
    headers: &[(String, String)],
) -> Result<(String, Vec<(String, String)>), String> {
    let Some(script) = settings::edit() else {
        return Ok((source.to_owned(), headers.to_vec()));
    };
    let header = |(name, text): &(String, String)| Ok((name.clone(), sed(&script, text)?));
    let headers: Result<_, String> = headers.iter().map(header).collect();
    Ok((sed(&script, source)?, headers?))
}

fn sed(script: &str, text: &str) -> Result<String, String> {
    let run = || -> std::io::Result<_> {
        let mut child = Command::new("sed")
            .env_remove("LD_PRELOAD")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take();
        std::thread::scope(|scope| {
            // A second thread writes: `sed` reads on only after its output was read.
            scope.spawn(move || input.as_mut().map(|to| to.write_all(text.as_bytes())));
            child.wait_with_output()
        })
    };
    let output = run().map_err(|error| format!("`sed` does not run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("sed: {}", String::from_utf8_lossy(&output.stderr)))
}
