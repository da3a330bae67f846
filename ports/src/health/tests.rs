use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic_health::pb::{
    FILE_DESCRIPTOR_SET, HealthCheckRequest, health_check_response::ServingStatus,
    health_client::HealthClient,
};

use super::*;

/// Any service that has descriptors.
const NAME: &str = "grpc.health.v1.Health";

#[tokio::test]
async fn watches_follow_changes_and_end_with_the_server() {
    for service in ["", NAME] {
        let made = Health::routes(NAME, FILE_DESCRIPTOR_SET).await;
        let (health, routes) = made.expect("descriptors");
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let watch = HealthClient::new(routes).watch(request).await;
        let mut watch = watch.expect("served").into_inner();
        let mut next = async || {
            let told = watch.message().await.expect("no broken stream");
            told.map(|told| told.status())
        };
        assert_eq!(next().await, Some(ServingStatus::NotServing), "unknown yet");

        let (says, said) = watch::channel(true);
        let changes = WatchStream::from_changes(said.clone()).map(|_| ());
        let check = move || std::future::ready(*said.borrow());
        let close = CancellationToken::new();
        let never = Duration::from_secs(3600);
        let report = tokio::spawn(health.report(check, changes, never, close.clone()));
        assert_eq!(next().await, Some(ServingStatus::Serving));
        says.send_replace(false);
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        says.send_replace(true);
        assert_eq!(next().await, Some(ServingStatus::Serving));
        close.cancel();
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        assert_eq!(next().await, None, "an end");
        report.await.expect("ended");
    }
}

#[tokio::test]
async fn a_check_that_hangs_does_not_hold_up_the_end() {
    let made = Health::routes(NAME, FILE_DESCRIPTOR_SET).await;
    let (health, _routes) = made.expect("descriptors");
    let close = CancellationToken::new();
    let report = health.report(
        std::future::pending,
        tokio_stream::empty(),
        Duration::ZERO,
        close.clone(),
    );
    let report = tokio::spawn(report);
    tokio::task::yield_now().await;
    close.cancel();
    report.await.expect("ended");
}
