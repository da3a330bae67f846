//! The way to the collector: OTLP over gRPC, on threads of its own.

use std::{io, sync::Arc};

use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::{self, Runtime};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::{
    environment::{self, Destination, TraceError},
    queue::{self, Counts},
};

/// Threads that serve the connection, so that no role's own threads do.
pub(crate) fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("traces")
        .enable_all()
        .build()
}

/// Makes and exports the spans of a service. Must be called inside of [`runtime`].
pub(crate) fn provider(
    destination: &Destination,
    (role, instance): (&str, &str),
    counts: &Arc<Counts>,
) -> Result<SdkTracerProvider, TraceError> {
    let endpoint = &destination.endpoint;
    let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    if endpoint.starts_with("https://") {
        let tls = ClientTlsConfig::new().with_enabled_roots();
        let roots = destination.roots.as_ref().map(Certificate::from_pem);
        exporter = exporter.with_tls_config(tls.ca_certificates(roots));
    }
    let exporter = exporter.build().map_err(TraceError::Exporter)?;
    Ok(SdkTracerProvider::builder()
        .with_span_processor(queue::batched(exporter, counts))
        .with_sampler(destination.sampler())
        .with_resource(environment::resource(role, instance))
        .build())
}
