const HEADING: &str = "Traces";

/// Which requests are traced, and where their traces go.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TraceArgs {
    /// Trace requests through all processes, and export that by OTLP.
    ///
    /// Besides these options the environment's OTEL_EXPORTER_OTLP_*, OTEL_BSP_*,
    /// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count.
    #[arg(long, env = "LOCKSTEP_ENABLE_TRACE", help_heading = HEADING)]
    pub enable_trace: bool,
    /// The collector's OTLP port for gRPC, such as localhost:4317 or https://collector:4317;
    /// naming it is --enable-trace too [default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, else
    /// OTEL_EXPORTER_OTLP_ENDPOINT, else localhost:4317].
    #[arg(long, env = "LOCKSTEP_OTLP_TRACES_ENDPOINT", value_name = "URL",
          help_heading = HEADING)]
    pub otlp_traces_endpoint: Option<String>,
    /// Share of the requests that are traced, 0 to 1, where the caller's traceparent does not
    /// decide it [default: as OTEL_TRACES_SAMPLER says, else 1].
    #[arg(long, env = "LOCKSTEP_TRACE_SAMPLE_RATIO", value_name = "SHARE",
          value_parser = share, help_heading = HEADING)]
    pub trace_sample_ratio: Option<f64>,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a number, 0 to 1".into())
}
