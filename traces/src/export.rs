//! The way to the collector: OTLP over gRPC, on threads of its own.

use std::{io, sync::Arc};

use lockstep_types::TraceConfig;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::{self, Runtime};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::{
    environment::{self, TraceError},
    queue::{self, Counts},
};

/// Serves the connection, so that no role's own threads do.
pub(crate) fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("traces")
        .enable_all()
        .build()
}

/// Makes and exports the spans of a service; to be called inside [`runtime`].
pub(crate) fn provider(
    config: &TraceConfig,
    (role, instance): (&str, &str),
    counts: &Arc<Counts>,
) -> Result<SdkTracerProvider, TraceError> {
    environment::check_protocol()?;
    let endpoint = environment::endpoint(config)?;
    let is_encrypted = endpoint.starts_with("https://");
    let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    if is_encrypted {
        let tls = ClientTlsConfig::new().with_enabled_roots();
        let roots = environment::roots()?.map(Certificate::from_pem);
        exporter = exporter.with_tls_config(tls.ca_certificates(roots));
    }
    let exporter = exporter.build().map_err(TraceError::Exporter)?;
    Ok(SdkTracerProvider::builder()
        .with_span_processor(queue::batched(exporter, counts))
        .with_sampler(environment::sampler(config)?)
        .with_resource(environment::resource(role, instance))
        .build())
}
