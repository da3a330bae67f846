//! `lockstep doctor`: reports the machine's resources for a server with the same options,
//! their problems, and remedies.

use std::fmt::Write;

use lockstep_config::ServeArgs;
use lockstep_devices::Finding;
use lockstep_process::exit;
use lockstep_types::Algorithms;
use serde_json::json;

use crate::console;
use crate::error::LaunchError;
use facts::Facts;

mod facts;
mod findings;
mod model;
mod requirements;

/// Options of `lockstep doctor`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// What is going to be served, and how.
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// Prints the report. The exit code tells whether there are problems.
pub(crate) fn run(args: &DoctorArgs, algorithms: &Algorithms) -> Result<u8, LaunchError> {
    let facts = Facts::collect(&args.serve, algorithms);
    let mut findings = findings::of(&facts);
    // Goes behind the finding of the processor's cores.
    findings.splice(1..1, lockstep_devices::findings());
    let text = match args.json {
        true => format!("{:#}", as_json(&findings)),
        false => report(&findings),
    };
    console::print(&text)?;
    Ok(match problems(&findings) {
        0 => exit::OK,
        _ => exit::PROBLEMS,
    })
}

fn as_json(findings: &[Finding]) -> serde_json::Value {
    let one = |finding: &Finding| {
        json!({
            "name": finding.name,
            "found": finding.found,
            "problem": finding.problem,
        })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "problems": problems(findings),
        "findings": findings.iter().map(one).collect::<Vec<_>>(),
    })
}

fn problems(findings: &[Finding]) -> usize {
    let ill = |finding: &&Finding| finding.problem.is_some();
    findings.iter().filter(ill).count()
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
    let _ = match problems(findings) {
        0 => write!(text, "\nNo problems."),
        1 => write!(text, "\nOne problem, marked with !."),
        n => write!(text, "\n{n} problems, marked with !."),
    };
    text
}

#[cfg(test)]
mod tests;
