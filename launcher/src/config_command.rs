//! `lockstep config`: prints the configuration that `lockstep serve` with the same options
//! would run.

use lockstep_config::ServeArgs;
use lockstep_process::exit;
use lockstep_types::Algorithms;
use serde_json::{Value, json};

use crate::console;
use crate::error::LaunchError;
use crate::settings::Settings;

pub(crate) fn run(args: &ServeArgs, algorithms: &Algorithms) -> Result<u8, LaunchError> {
    let settings = Settings::of_server(args, algorithms)?;
    console::print(&format!("{:#}", describe(&settings)))?;
    Ok(exit::OK)
}

/// The configuration without secrets, and without the folder of this command's run.
fn describe(settings: &Settings) -> Value {
    let node = &settings.file.node;
    let secret = |text: &Option<String>| {
        if text.is_some() {
            "set, not shown"
        } else {
            "not set"
        }
    };
    let mut engine = json!(settings.file.engine);
    if settings.demo {
        engine["model"]["path"] = "(inside the program)".into();
    }
    if settings.demo_head {
        engine["speculation"]["draft"]["model"]["path"] = "(inside the program)".into();
    }
    json!({
        "hash": settings.file.hash,
        "engine": engine,
        "node": {
            "node_rank": node.node_rank,
            "cores": node.cores,
            "weight_cache": node.weight_cache,
            "weight_update_dir": node.weight_update_dir,
            "lora_paths": node.lora_paths,
            "lora_dir": node.lora_dir,
            "api_key": secret(&node.api_key),
            "admin_api_key": secret(&node.admin_api_key),
            "dist_secret": secret(&node.dist_secret),
            "tls": node.tls,
            "dist_tls": node.dist_tls,
            "log": node.log,
            "log_json": node.log_json,
            "traces": node.traces,
        },
        "max_restarts": settings.max_restarts,
        "ping_timeout_s": settings.ping_timeout.as_secs(),
        "notes": settings.notes,
    })
}

#[cfg(test)]
mod tests;
