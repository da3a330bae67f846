//! `lockstep doctor`: what this machine offers, and what could be better.

use std::fmt::Write;

use lockstep_config::Hardware;
use lockstep_devices::Finding;
use lockstep_process::exit;

use crate::console;
use crate::error::LaunchError;

mod cores;
mod system;

/// Prints the report. Problems are advice: the exit code is 0.
pub(crate) fn run() -> Result<u8, LaunchError> {
    let hardware = Hardware::detect();
    let mut findings = vec![cores::find(&hardware)];
    findings.extend(lockstep_devices::findings());
    findings.push(system::memory(&hardware));
    findings.push(system::huge_pages());
    findings.push(system::shared_memory());
    findings.push(system::open_files());
    findings.push(system::run_dir());
    console::print(&report(&findings))?;
    Ok(exit::OK)
}

fn report(findings: &[Finding]) -> String {
    let mut text = format!("lockstep {}\n\n", env!("CARGO_PKG_VERSION"));
    for Finding {
        name,
        found,
        problem,
    } in findings
    {
        let mark = if problem.is_some() { "!" } else { " " };
        let _ = writeln!(text, "{mark} {name:<14} {found}");
        if let Some(problem) = problem {
            let _ = writeln!(text, "  {:<14} → {problem}", "");
        }
    }
    let problems = findings
        .iter()
        .filter(|finding| finding.problem.is_some())
        .count();
    let _ = match problems {
        0 => write!(text, "\nNo problems."),
        1 => write!(text, "\nOne problem, marked with !."),
        n => write!(text, "\n{n} problems, marked with !."),
    };
    text
}

#[cfg(test)]
mod tests;
