//! Services that every gRPC port has besides its own: `grpc.health.v1`, and reflection on both.

use std::{future::Future, io, pin::pin, time::Duration};

use lockstep_proto::limits::SMALL_MESSAGE_BYTES;
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tonic_reflection::server::Builder;

/// Minimum time between two checks.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// Tells clients of `grpc.health.v1` whether a service is served.
#[derive(Debug)]
pub struct Health {
    reporter: HealthReporter,
    /// Names that clients may ask for: the whole server, and the service by its full name.
    names: [&'static str; 2],
}

impl Health {
    /// Returns the first routes of a port whose own service has the full name `service`.
    /// `descriptors` is an encoded `FileDescriptorSet` of it. The service counts as not serving
    /// until [`Health::report`] finds that it serves.
    ///
    /// # Errors
    /// Fails if the descriptors cannot be read.
    pub async fn routes(
        service: &'static str,
        descriptors: &'static [u8],
    ) -> io::Result<(Self, Routes)> {
        let (reporter, server) = tonic_health::server::health_reporter();
        let names = ["", service];
        let health = Self { reporter, names };
        // tonic's default is SERVING, but nothing is known before the first check.
        health.tell(false).await;
        let reflection = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(descriptors)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                .with_service_name(service)
                .with_service_name("grpc.health.v1.Health")
        };
        // Older tools (grpcurl before 1.9, grpcio-reflection) speak only v1alpha.
        let newer = reflection().build_v1().map_err(io::Error::other)?;
        let older = reflection().build_v1alpha().map_err(io::Error::other)?;
        let routes = Routes::new(server.max_decoding_message_size(SMALL_MESSAGE_BYTES))
            .add_service(newer.max_decoding_message_size(SMALL_MESSAGE_BYTES))
            .add_service(older.max_decoding_message_size(SMALL_MESSAGE_BYTES));
        Ok((health, routes))
    }

    /// Reports whether the service `serves`, at first and after each of `changes`. `check` finds
    /// out what `changes` cannot show. It runs every `period`, and sooner after a bad result; its
    /// result arrives as one of `changes`. On `close`, open watches end, since they would delay
    /// the server's end.
    pub async fn report<C: Future<Output = bool>>(
        mut self,
        serves: impl Fn() -> bool,
        mut changes: impl Stream<Item = ()> + Unpin,
        check: impl Fn() -> C,
        period: Duration,
        close: CancellationToken,
    ) {
        let period = period.max(SHORTEST_PERIOD);
        let mut checks = pin!(async {
            loop {
                let next = match check().await {
                    true => period,
                    false => SHORTEST_PERIOD,
                };
                tokio::time::sleep(next).await;
            }
        });
        let mut told = false;
        loop {
            let serving = serves();
            // A watch sends every status it gets, so only changes are told.
            if serving != told {
                self.tell(serving).await;
                told = serving;
            }
            tokio::select! {
                biased;
                () = close.cancelled() => break,
                Some(()) = changes.next() => {}
                () = &mut checks => {}
            }
        }
        if told {
            self.tell(false).await;
        }
        for name in self.names {
            self.reporter.clear_service_status(name).await;
        }
    }

    async fn tell(&self, serving: bool) {
        let status = match serving {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        for name in self.names {
            self.reporter.set_service_status(name, status).await;
        }
    }
}

#[cfg(test)]
mod tests;
