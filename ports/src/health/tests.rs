use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic_health::pb::{
    FILE_DESCRIPTOR_SET, HealthCheckRequest, health_check_response::ServingStatus,
    health_client::HealthClient,
};

use super::*;

/// Name of a service that has descriptors.
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
        let (checked, mut checks) = watch::channel(0);
        let check = move || {
            checked.send_modify(|checks| *checks += 1);
            std::future::ready(true)
        };
        let serves = move || *said.borrow();
        let close = CancellationToken::new();
        let never = Duration::from_secs(3600);
        let report = health.report(serves, changes, check, never, close.clone());
        let report = tokio::spawn(report);
        assert_eq!(next().await, Some(ServingStatus::Serving));
        checks.wait_for(|checks| *checks == 1).await.expect("asked");
        says.send_replace(false);
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        says.send_replace(true);
        assert_eq!(next().await, Some(ServingStatus::Serving));
        assert_eq!(*checks.borrow(), 1, "it costs no check");
        close.cancel();
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        assert_eq!(next().await, None, "an end");
        report.await.expect("ended");
    }
}

#[tokio::test]
async fn what_a_check_hangs_on_is_told_all_the_same() {
    let made = Health::routes(NAME, FILE_DESCRIPTOR_SET).await;
    let (health, routes) = made.expect("descriptors");
    let request = HealthCheckRequest {
        service: NAME.to_owned(),
    };
    let watch = HealthClient::new(routes).watch(request).await;
    let mut watch = watch.expect("served").into_inner();
    let mut next = async || watch.message().await.expect("no broken stream");
    let not_serving = next().await.map(|told| told.status());
    assert_eq!(not_serving, Some(ServingStatus::NotServing));
    let (says, said) = watch::channel(false);
    let changes = WatchStream::from_changes(said.clone()).map(|_| ());
    let serves = move || *said.borrow();
    let close = CancellationToken::new();
    let hangs = std::future::pending::<bool>;
    let report = health.report(serves, changes, hangs, Duration::ZERO, close.clone());
    let report = tokio::spawn(report);
    for serving in [true, false] {
        says.send_replace(serving);
        let told = next().await.map(|told| told.status());
        assert_eq!(told == Some(ServingStatus::Serving), serving);
    }
    close.cancel();
    report.await.expect("ended");
}

/// Perhaps nobody else checks, so this must find out that all is well again.
#[tokio::test]
async fn what_was_not_well_is_looked_at_again_soon() {
    let made = Health::routes(NAME, FILE_DESCRIPTOR_SET).await;
    let (health, _routes) = made.expect("descriptors");
    let (checks, mut checked) = watch::channel(0);
    let check = move || {
        checks.send_modify(|checks| *checks += 1);
        std::future::ready(*checks.borrow() > 1)
    };
    let hour = Duration::from_secs(3600);
    let close = CancellationToken::new();
    let never = tokio_stream::pending();
    let report = health.report(|| false, never, check, hour, close.clone());
    let report = tokio::spawn(report);
    let again = checked.wait_for(|checks| *checks == 2);
    let again = tokio::time::timeout(Duration::from_secs(60), again).await;
    again.expect("long before an hour").expect("it goes on");
    close.cancel();
    report.await.expect("ended");
}
