//! gRPC clients of the public ports.

use lockstep_proto::pb::lockstep::inference_client::InferenceClient;
use lockstep_proto::pb::sglang::grpc::scheduler::sglang_scheduler_client::SglangSchedulerClient;
use tonic::transport::{Channel, Endpoint};

use crate::server::Server;

/// Connects to a port of this machine.
///
/// # Errors
/// If nobody speaks HTTP/2 there.
pub async fn connect(port: u16) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?
        .connect()
        .await
}

impl Server {
    /// Returns a client of `lockstep.v1.Inference`.
    ///
    /// # Panics
    /// Panics if it cannot connect.
    pub async fn inference(&self) -> InferenceClient<Channel> {
        InferenceClient::new(connect(self.grpc_port).await.expect("connected"))
    }

    /// Returns a client of `sglang.grpc.scheduler.SglangScheduler`.
    ///
    /// # Panics
    /// Panics if it cannot connect.
    pub async fn sglang(&self) -> SglangSchedulerClient<Channel> {
        SglangSchedulerClient::new(connect(self.sglang_port).await.expect("connected"))
    }
}
