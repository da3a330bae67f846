//! A server of two nodes on one machine.

use lockstep_tests::{
    ports,
    server::Options,
    wait::{LIMIT, until},
};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::one_rank;

/// Port and secret of two nodes with one rank each.
pub struct Nodes {
    /// The port where node 0 listens for node 1.
    pub port: u16,
    secret: TempDir,
}

impl Nodes {
    pub fn new() -> Self {
        let secret = tempfile::tempdir().expect("a folder");
        std::fs::write(secret.path().join("secret"), "the-secret-of-both-nodes").expect("written");
        Self {
            port: ports::free(),
            secret,
        }
    }

    /// Options of node `rank`.
    pub fn options(&self, rank: usize) -> Options {
        let secret = self.secret.path().join("secret");
        one_rank()
            .set("--tp-size", "2")
            .set("--nnodes", "2")
            .set("--node-rank", &rank.to_string())
            .set("--dist-init-addr", &format!("127.0.0.1:{}", self.port))
            .set("--dist-secret-file", secret.to_str().expect("UTF-8"))
    }

    /// Waits until node 0 listens.
    pub async fn open(&self) {
        until("the port of nodes", LIMIT, async || {
            TcpStream::connect(("127.0.0.1", self.port)).await.ok()
        })
        .await;
    }
}
