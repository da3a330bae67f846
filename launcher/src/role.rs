//! A process that the launcher started.

use std::path::Path;
use std::process::ExitCode;

use lockstep_devices::Registry;
use lockstep_process::{Role, RoleContext, exit};

use crate::console;

/// Runs `role` to its end.
pub(crate) fn run(role: Role, run_dir: &Path, registry: &Registry) -> ExitCode {
    // Name for ps and top; without it they show the name of /proc/self/exe.
    let _ = rustix::thread::set_name(match role {
        Role::TokenizerManager(_) => c"ls-tokenizer",
        Role::Scheduler => c"ls-scheduler",
        Role::Worker(_) => c"ls-worker",
    });
    let context = match RoleContext::enter(run_dir, role) {
        Ok(context) => context,
        Err(error) => {
            console::print_error(&error);
            return ExitCode::from(exit::START_FAILED);
        }
    };
    let own = context.clone();
    let code = match role {
        Role::TokenizerManager(_) => context.leave(lockstep_tokenizer_manager::run(own)),
        Role::Scheduler => context.leave(lockstep_scheduler::run(own)),
        Role::Worker(_) => context.leave(lockstep_tp_worker::run(own, registry)),
    };
    ExitCode::from(code)
}
