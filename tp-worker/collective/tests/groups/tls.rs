//! Groups over TCP whose ranks speak TLS.

use std::sync::{Arc, LazyLock};
use std::thread;

use lockstep_collective::{Collective as _, CollectiveError, Options, TcpListenerHandle, Tls};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::attached;
use crate::support::{self, Case, Members, check_against_oracle};
use crate::tcp::{self, SECRET, bind};

/// Makes the TLS configuration of a rank. `signs` has signed its certificate; the rank trusts
/// certificates of `trusts`.
fn rank(signs: &Authority, trusts: &Authority) -> Tls {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(trusts.der().clone()).expect("a root");
    let roots = Arc::new(roots);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["rank.lockstep.internal".to_owned()]);
    let params = params.expect("a name");
    let certificate = params.signed_by(&key, &**signs).expect("signed");
    let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
    let key = || PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .expect("roots");
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key());
    Tls {
        client: Arc::new(client.expect("a pair")),
        server: Arc::new(server.expect("a pair")),
    }
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

fn group(size: usize, options: &Options) -> Members {
    static SHOWN: LazyLock<Tls> = LazyLock::new(|| {
        let own = authority();
        rank(&own, &own)
    });
    tcp::joined(size, options, &|handle| handle.secured(Some(SHOWN.clone())))
}

#[test]
fn a_rank_that_leaves_is_seen() {
    tcp::who_leaves_is_seen(group(3, &Options::default()), drop);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..Default::default() })]

    #[test]
    fn equals_the_plain_sum(case in support::cases(100_000), capacity in 1_usize..70_000) {
        let max_elements = capacity.max(case.longest() / 16);
        check_against_oracle(&case, group(case.size, &Options { max_elements, ..Options::default() }));
    }

    #[test]
    fn words_arrive_with_what_they_were_attached_to(
        script in attached::scripts(), size in 1_usize..5, capacity in 100_usize..3_000,
    ) {
        let options = Options { max_elements: capacity, ..Options::default() };
        attached::equals_the_account(&script, group(size, &options));
    }
}

#[test]
fn both_sides_may_send_more_than_the_sockets_hold() {
    let options = Options {
        max_elements: 4 << 20,
        ..Options::default()
    };
    check_against_oracle(&Case::new(2, 2 << 20, 7), group(2, &options));
}

support::failure_tests!(group);

/// Lets a rank with the configuration `wrong` join as rank 1, beside ranks that belong. Returns
/// its error.
fn joined(own: &Tls, wrong: Tls) -> CollectiveError {
    let (handles, addresses) = bind(3);
    let [first, stranger, right] = handles.try_into().expect("three");
    let addresses = &addresses[..2];
    let join = |handle: TcpListenerHandle, rank| {
        let handle = handle.secured(Some(own.clone()));
        let member = handle.connect_with(rank, addresses, "group", SECRET, &support::patient());
        member.expect("connect").barrier().expect("barrier");
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| join(first, 0));
        let stranger = stranger.secured(Some(wrong));
        let options = support::impatient();
        let error = stranger.connect_with(1, addresses, "group", SECRET, &options);
        join(right, 1);
        first.join().expect("rank 0 panicked");
        error.expect_err("refused")
    })
}

#[test]
fn ranks_without_the_groups_certificates_are_refused() {
    let (own, other) = (authority(), authority());
    let shown = rank(&own, &own);
    // The rank does not trust the group; then the group does not trust the rank.
    for (wrong, says) in [
        (rank(&own, &other), "certificate"),
        (rank(&other, &own), "fatal alert"),
    ] {
        let text = joined(&shown, wrong).to_string();
        assert!(
            text.contains("rank 1 cannot join") && text.contains(says),
            "{text}"
        );
    }
}
