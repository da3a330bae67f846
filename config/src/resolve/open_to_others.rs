//! Notes about servers that many can reach.

use std::net::IpAddr;

use lockstep_types::{ServerConfig, SpeculationConfig};

use crate::args::ServeArgs;

/// Notes about a server that others than its users can reach.
pub(super) fn notes(
    args: &ServeArgs,
    server: &ServerConfig,
    speculation: &SpeculationConfig,
) -> impl Iterator<Item = String> {
    let to_all = open_to_all(args, server, speculation);
    to_all.into_iter().chain(open_to_pages(server))
}

/// A note about a server that others can reach and that asks for no key: anybody may then send
/// operators' requests.
fn open_to_all(
    args: &ServeArgs,
    server: &ServerConfig,
    speculation: &SpeculationConfig,
) -> Option<String> {
    let host = server.host.trim_start_matches('[').trim_end_matches(']');
    let local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if local || server.api_key_required {
        return None;
    }
    let corpora = match &speculation.algorithm {
        Some(name) if speculation.drafts_from_texts => {
            format!(", add and remove the texts that {name} drafts from")
        }
        _ => String::new(),
    };
    let weights = match args.server.weight_update_dir {
        Some(_) => ", exchange its weights",
        None => "",
    };
    let adapters = match args.lora.lora_dir {
        Some(_) => ", load and unload its adapters",
        None => "",
    };
    Some(format!(
        "whoever reaches {} can use this server, flush its cache, abort its requests{corpora}\
         {weights}{adapters}; --api-key-file makes it ask for a key",
        server.host
    ))
}

/// A note about a server that every web page may use.
fn open_to_pages(server: &ServerConfig) -> Option<String> {
    let any = |list: &[String]| list.iter().any(|entry| entry == "*");
    let (option, who) = if any(&server.web.cors_allowed_origins) {
        ("--cors-allowed-origins *", "every web page")
    } else if any(&server.web.allowed_hosts) {
        ("--allowed-hosts *", "a web page whose name leads here")
    } else {
        return None;
    };
    let exposed = !server.api_key_required;
    exposed.then(|| {
        format!(
            "{who} that is open where this server can be reached can use it, for {option} stands \
             and no key is asked for; --api-key-file makes it ask"
        )
    })
}
