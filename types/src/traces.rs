//! Traces of requests through all processes: configuration, and the context that travels.

use serde::{Deserialize, Serialize};

/// Destination of traces, and the part of requests that are traced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceConfig {
    /// URL of the collector's OTLP port, with its scheme; `None` = the environment's
    /// `OTEL_EXPORTER_OTLP_*` decide.
    pub endpoint: Option<String>,
    /// Traced requests per million, among those whose callers decide nothing; `None` = the
    /// environment's `OTEL_TRACES_SAMPLER` decides. Its default is all of them.
    pub sample_ppm: Option<u32>,
}

impl TraceConfig {
    /// Number of requests that `sample_ppm` is a part of.
    pub const MILLION: u32 = 1_000_000;

    /// Returns the URL of a collector's address as people write it. `host:port` and `grpc://…`
    /// mean HTTP without TLS, and `grpcs://…` means HTTPS. Returns `None` if `address` is no
    /// such address.
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

/// A place in a sampled trace, in the W3C's form. Spans of other processes join the trace
/// there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `traceparent`: the trace, the span in it, and the flag that says if it was sampled.
    pub parent: String,
    /// `tracestate`: entries of other tracing systems; may be empty.
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
