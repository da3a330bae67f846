//! Processes of a node.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use lockstep_config::ConfigFile;
use lockstep_process::Role;
use tokio::process::Command;

use super::child::ChildSpec;

/// The roles of this node: its own ranks, and on node 0 the scheduler and the public front.
pub(super) fn roles(file: &ConfigFile) -> Vec<Role> {
    let (parallel, node) = (&file.engine.parallel, &file.node);
    let local = file.engine.ranks_per_node();
    let first = node.node_rank * local;
    let mut roles = Vec::new();
    if node.node_rank == 0 {
        roles.push(Role::Scheduler);
    }
    roles.extend((first..first + local).map(Role::Worker));
    if node.node_rank == 0 {
        roles.extend((0..parallel.tokenizer_managers).map(Role::TokenizerManager));
    }
    roles
}

/// Commands that start the roles.
pub(super) fn specs(file: &ConfigFile) -> Vec<ChildSpec> {
    let roles = roles(file).into_iter();
    roles.map(|role| spec(file, role)).collect()
}

/// Settings of glibc (`mallopt(3)`) for roles whose memory strangers can make grow. With a
/// fixed threshold each large buffer is a mapping. A mapping grows without a copy and goes
/// back to the system when it is freed. By default the threshold grows with freed buffers,
/// up to 32 MiB, and the process keeps such memory. Few arenas leave few holes.
const MALLOC: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "262144"),
    ("MALLOC_TRIM_THRESHOLD_", "1048576"),
    ("MALLOC_ARENA_MAX", "4"),
];

/// Command that starts a role: this same executable again, even if a newer version has
/// replaced its file meanwhile.
pub(super) fn spec(file: &ConfigFile, role: Role) -> ChildSpec {
    spec_where(file, role, |name| std::env::var_os(name).is_some())
}

/// The command of [`spec`], with a function that returns true for environment variables that
/// are set.
fn spec_where(file: &ConfigFile, role: Role, is_set: impl Fn(&str) -> bool) -> ChildSpec {
    let (name, index) = match role {
        Role::Scheduler => ("scheduler", 0),
        Role::Worker(rank) => ("worker", rank),
        Role::TokenizerManager(index) => ("tokenizer-manager", index),
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(program_name())
        .arg(name)
        .arg("--run-dir")
        .arg(&file.node.run_dir);
    command.args(["--index", &index.to_string()]);
    if !matches!(role, Role::Worker(_)) {
        command.envs(MALLOC.into_iter().filter(|(name, _)| !is_set(name)));
    }
    ChildSpec { role, command }
}

/// The name by which this program was called, for listings of processes.
fn program_name() -> OsString {
    std::env::args_os()
        .next()
        .filter(|name| !name.as_bytes().is_empty())
        .unwrap_or("lockstep".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::config_file;

    #[test]
    fn roles_that_strangers_reach_are_told_to_give_memory_back() {
        let given = |role, is_set: fn(&str) -> bool| {
            let spec = spec_where(&config_file(), role, is_set);
            spec.command.as_std().get_envs().count()
        };
        for role in [Role::Scheduler, Role::TokenizerManager(1)] {
            assert_eq!(given(role, |_| false), MALLOC.len());
            assert_eq!(given(role, |name| name == "MALLOC_ARENA_MAX"), 2);
        }
        assert_eq!(given(Role::Worker(0), |_| false), 0);
    }

    #[test]
    fn every_node_runs_its_own_ranks_and_node_0_the_rest() {
        let table = [
            (
                1,
                0,
                "scheduler, worker 0, worker 1, worker 2, worker 3, tokenizer-manager 0",
            ),
            (2, 0, "scheduler, worker 0, worker 1, tokenizer-manager 0"),
            (2, 1, "worker 2, worker 3"),
            (4, 3, "worker 3"),
        ];
        for (nnodes, node_rank, expected) in table {
            let mut file = config_file();
            file.engine.parallel.tp_size = 4;
            file.engine.parallel.nnodes = nnodes;
            file.node.node_rank = node_rank;
            let names: Vec<_> = roles(&file).iter().map(Role::to_string).collect();
            assert_eq!(names.join(", "), expected);
        }
    }
}
