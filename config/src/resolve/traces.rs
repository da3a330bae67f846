//! Settings of traces: the traced requests, and the collector.

use lockstep_types::TraceConfig;

use super::ConfigError;
use crate::args::TraceArgs;

/// Settings of traces; `None` if nothing is traced. The environment decides about settings that
/// are left open. The processes that trace read it.
pub(super) fn resolve(args: &TraceArgs) -> Result<Option<TraceConfig>, ConfigError> {
    let endpoint = args.otlp_traces_endpoint.as_deref().map(|address| {
        TraceConfig::url(address).ok_or_else(|| {
            ConfigError::value(
                "--otlp-traces-endpoint",
                address,
                "is no address of a collector",
                "Give it as host:port, http://host:port or https://host:port",
            )
        })
    });
    let endpoint = endpoint.transpose()?;
    if !args.enable_trace && endpoint.is_none() {
        return match args.trace_sample_ratio {
            None => Ok(None),
            Some(ratio) => Err(ConfigError::conflict(
                format!("--trace-sample-ratio {ratio}"),
                "--enable-trace",
                "nothing is traced without it",
                "Give --enable-trace too",
            )),
        };
    }
    // At most a million, which is exact.
    let ppm = |ratio: f64| (ratio * f64::from(TraceConfig::MILLION)).round() as u32;
    Ok(Some(TraceConfig {
        endpoint,
        sample_ppm: args.trace_sample_ratio.map(ppm),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::resolve_line;

    fn traces(line: &str) -> Result<Option<TraceConfig>, String> {
        let resolved = resolve_line(line).map(|(_, node)| node.traces);
        resolved.map_err(|error| error.to_string())
    }

    #[test]
    fn requests_are_traced_where_that_is_asked_for() {
        assert_eq!(traces(""), Ok(None));
        assert_eq!(traces("--enable-trace=false"), Ok(None));
        assert_eq!(traces("--enable-trace"), Ok(Some(TraceConfig::default())));
        let named = traces("--otlp-traces-endpoint c:4317 --trace-sample-ratio 0.01");
        let expected = TraceConfig {
            endpoint: Some("http://c:4317".to_owned()),
            sample_ppm: Some(10_000),
        };
        assert_eq!(named, Ok(Some(expected)));
    }

    #[test]
    fn what_traces_nothing_is_refused() {
        for (line, part) in [
            ("--trace-sample-ratio 0.5", "Give --enable-trace too"),
            ("--otlp-traces-endpoint ftp://c", "host:port"),
        ] {
            let error = traces(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
