//! Scenarios in processes of their own: what breaks a context for good, what the
//! environment decides, and what sanitizers report.

use std::io::Write;
use std::process::{Command, Output};

use crate::{errors, memory, order, sanitizers};

/// What a child can do.
const SCENARIOS: [(&str, fn()); 9] = [
    ("fault", errors::fault),
    ("no device", errors::look_for_devices),
    ("old driver", errors::tell_driver),
    ("small memory", errors::fill_memory),
    ("source goes", memory::give_source_back),
    ("stale values", order::print_stale_values),
    ("block sum", sanitizers::block_sum),
    ("behind", sanitizers::behind),
    ("vectors", sanitizers::vectors),
];

/// The variable that names the scenario.
const NAME: &str = "SCENARIO";
/// The variable for whatever it has to be told.
pub(crate) const DETAIL: &str = "SCENARIO_DETAIL";

/// Does what the environment names; nothing, where somebody else asks.
pub(crate) fn run() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let known = SCENARIOS.iter().find(|(known, _)| *known == name);
    let (_, scenario) = known.unwrap_or_else(|| panic!("no scenario `{name}`"));
    scenario();
}

/// What a scenario has been told.
pub(crate) fn detail() -> String {
    std::env::var(DETAIL).unwrap_or_default()
}

/// A line for the one who started this process.
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

/// Whether it went well, and all that it said.
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
