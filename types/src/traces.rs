//! Traces: which requests are followed through all processes, and how they travel.

use serde::{Deserialize, Serialize};

/// Where traces go and how many requests have one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceConfig {
    /// URL of the collector's OTLP port, with its scheme; `None` = as the environment's
    /// `OTEL_EXPORTER_OTLP_*` say.
    pub endpoint: Option<String>,
    /// Of the requests whose callers decide nothing, so many in a million; `None` = as the
    /// environment's `OTEL_TRACES_SAMPLER` says, which is all of them at first.
    pub sample_ppm: Option<u32>,
}

impl TraceConfig {
    /// A request in a million is one of so many.
    pub const MILLION: u32 = 1_000_000;

    /// The URL that people mean by a collector's address: `host:port` is spoken to without
    /// TLS, and `grpc://` is another word for that. `None` for what is no such address.
    pub fn url(address: &str) -> Option<String> {
        let (scheme, rest) = match address.split_once("://") {
            None => ("http", address),
            Some(("http" | "grpc", rest)) => ("http", rest),
            Some(("https" | "grpcs", rest)) => ("https", rest),
            Some(_) => return None,
        };
        let host = rest.split('/').next().unwrap_or_default();
        let plain = !host.is_empty() && !rest.contains(char::is_whitespace);
        plain.then(|| format!("{scheme}://{rest}"))
    }
}

/// A place in a trace that was sampled, as the W3C writes it: what is done for it elsewhere
/// becomes a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `traceparent`: the trace, the span in it, and whether it was sampled.
    pub parent: String,
    /// `tracestate`: what other systems keep beside it; may be empty.
    pub state: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_people_write_them_are_urls() {
        for (address, url) in [
            ("localhost:4317", Some("http://localhost:4317")),
            ("grpc://c:4317", Some("http://c:4317")),
            ("http://[::1]:4317", Some("http://[::1]:4317")),
            ("https://c.example.com/x", Some("https://c.example.com/x")),
            ("grpcs://c:1", Some("https://c:1")),
            ("ftp://c:1", None),
            ("http://", None),
            ("", None),
            ("a b:1", None),
        ] {
            assert_eq!(TraceConfig::url(address).as_deref(), url, "{address}");
        }
    }
}
