//! Repository chores: `cargo xtask tidy`.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

use std::path::Path;
use std::process::ExitCode;

use xtask::Tree;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments != ["tidy"] {
        eprintln!(
            "usage: cargo xtask tidy\n\nChecks the repository's habits (see CONTRIBUTING.md)."
        );
        return Ok(ExitCode::from(2));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let findings = xtask::check(&Tree::read(&root)?);
    findings.iter().for_each(|finding| println!("{finding}"));
    if findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} findings", findings.len());
    Ok(ExitCode::FAILURE)
}
