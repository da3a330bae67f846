//! Scenarios that run in processes of their own: failures that break a context for good,
//! settings of the environment, and reports of sanitizers.

use std::io::Write;
use std::process::{Command, Output};

use crate::{errors, memory, order, programmatic, sanitizers};

/// Scenarios that a child process can run.
const SCENARIOS: [(&str, fn()); 11] = [
    ("fault", errors::fault),
    ("no device", errors::look_for_devices),
    ("old driver", errors::tell_driver),
    ("small memory", errors::fill_memory),
    ("source goes", memory::give_source_back),
    ("stale values", order::print_stale_values),
    ("block sum", sanitizers::block_sum),
    ("behind", sanitizers::behind),
    ("vectors", sanitizers::vectors),
    ("chain", programmatic::run_chain),
    ("old device", programmatic::launch_on_old_device),
];

/// The variable with the scenario's name.
const NAME: &str = "SCENARIO";
/// The variable with the scenario's detail.
pub(crate) const DETAIL: &str = "SCENARIO_DETAIL";

/// Runs the scenario that the environment names, if it names one.
pub(crate) fn run() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let known = SCENARIOS.iter().find(|(known, _)| *known == name);
    let (_, scenario) = known.unwrap_or_else(|| panic!("no scenario `{name}`"));
    scenario();
}

/// Detail of the scenario.
pub(crate) fn detail() -> String {
    std::env::var(DETAIL).unwrap_or_default()
}

/// Prints a line for the process that started this one.
pub(crate) fn tell(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("somebody reads");
}

/// The command that runs a scenario, for changes to its environment.
pub(crate) fn command(name: &str) -> Command {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["scenario", "--exact", "--ignored", "--nocapture"]);
    command.env(NAME, name);
    command.env("FAKE_CUDA_TELL", "1");
    command
}

/// Runs the command. Returns true if it went well, and all of its output.
pub(crate) fn finish(command: &mut Command) -> (bool, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the child starts");
    let text = [stdout, stderr].concat();
    (
        status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}
