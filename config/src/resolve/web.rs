//! Origins and host names of web pages that the front answers.

use lockstep_types::WebConfig;

use super::ConfigError;
use crate::args::ServerArgs;

/// Origins and names in the one form that they are compared in.
pub(super) fn resolve(given: &ServerArgs) -> Result<WebConfig, ConfigError> {
    Ok(WebConfig {
        cors_allowed_origins: each(&given.cors_allowed_origins, origin)?,
        allowed_hosts: each(&given.allowed_hosts, host)?,
        console: !given.disable_console,
    })
}

fn each(
    given: &[String],
    check: fn(&str) -> Result<(), ConfigError>,
) -> Result<Vec<String>, ConfigError> {
    let one = |text: &String| {
        let text = text.trim().trim_end_matches('/').to_ascii_lowercase();
        check(&text).map(|()| text)
    };
    given.iter().map(one).collect()
}

/// Checks an origin (RFC 6454): a scheme, a host and, unless it is the scheme's own, a port.
fn origin(text: &str) -> Result<(), ConfigError> {
    let authority = text.split_once("://").map(|(_, authority)| authority);
    let whole = authority.is_some_and(|authority| {
        !authority.is_empty()
            && authority
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"/?#@*".contains(&byte))
    });
    if whole || text == "*" {
        return Ok(());
    }
    Err(ConfigError::value(
        "--cors-allowed-origins",
        text,
        "is not the origin of a web page",
        "Give scheme and host, and the port if there is one: https://chat.example.com",
    ))
}

fn host(text: &str) -> Result<(), ConfigError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if text == "*" || (!text.is_empty() && text.bytes().all(plain)) {
        return Ok(());
    }
    Err(ConfigError::value(
        "--allowed-hosts",
        text,
        "is not a host's name",
        "Give it without scheme and port: llm.example.com",
    ))
}
