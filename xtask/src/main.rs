//! Repository chores: `cargo xtask tidy` and `cargo xtask schema`.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use xtask::Tree;

const USAGE: &str = "\
usage: cargo xtask tidy    checks the repository's habits (see CONTRIBUTING.md)
       cargo xtask schema  writes what is generated from the flags of `lockstep`: docs/flags.md,
                           docs/coming-from.md and `config` in the schema of the Helm chart's values";

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(),
        ["schema"] => schema(),
        _ => {
            eprintln!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    }
}

fn tidy() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let findings = xtask::check(&Tree::read(&root)?);
    findings.iter().for_each(|finding| println!("{finding}"));
    if findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} findings", findings.len());
    Ok(ExitCode::FAILURE)
}

/// Writes the generated files, by running the tests that check these files. So this
/// crate need not build the program.
fn schema() -> anyhow::Result<ExitCode> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tests = Command::new(cargo);
    tests.args(["test", "--package", "lockstep", "--lib", "reference"]);
    let done = tests.env("UPDATE_EXPECT", "1").status();
    let done = done.context("starting cargo")?;
    Ok(if done.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
