//! Certificates that nodes show each other.

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use tokio_rustls::TlsAcceptor;

use super::*;

/// Files of a node that trusts whom these authorities have signed.
fn node(folder: &TempDir, pair: &[String; 2], trusts: &[&Authority]) -> TlsFiles {
    let at = |name| folder.path().join(name);
    let files = TlsFiles {
        certificate: at("node.pem"),
        key: at("node.key"),
        client_roots: Some(at("roots.pem")),
    };
    write(&files, pair);
    let roots: String = trusts.iter().map(|trusted| trusted.0.pem()).collect();
    fs::write(at("roots.pem"), roots).expect("written");
    files
}

#[test]
fn a_certificate_has_to_be_good_for_both_sides() {
    let (folder, own) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let other = Authority::new();
    for (signs, usages, good) in [
        (&own, vec![], true),
        (&own, vec![ClientAuth, ServerAuth], true),
        (&own, vec![ClientAuth], false),
        (&own, vec![ServerAuth], false),
        (&other, vec![], false),
    ] {
        let pair = signs.sign_with(|params| params.extended_key_usages.clone_from(&usages));
        let loaded = NodeTls::load(&node(&folder, &pair, &[&own]));
        assert_eq!(loaded.is_ok(), good, "{usages:?}");
        if let Err(error) = loaded {
            let error = error.to_string();
            assert!(error.contains("other nodes would refuse it"), "{error}");
        }
    }
}

#[test]
fn a_node_names_the_roots_of_others() {
    let (folder, own) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let mut files = node(&folder, &own.sign(), &[&own]);
    Tls::of_nodes(&files).expect("all three");
    files.client_roots = None;
    for error in [
        NodeTls::load(&files).expect_err("no roots"),
        Tls::of_nodes(&files).expect_err("no roots"),
    ] {
        assert!(error.to_string().contains("no roots"), "{error}");
    }
}

/// Each row has a caller, a called node, and the outcome.
#[tokio::test]
async fn both_sides_ask_for_a_certificate_of_their_own_roots() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [own, other] = [(); 2].map(|()| Authority::new());
    let load = |folder, signs: &Authority, trusts: &[&Authority]| {
        NodeTls::load(&node(folder, &signs.sign(), trusts)).expect("good")
    };
    let strict = load(&folders[0], &own, &[&own]);
    let stranger = load(&folders[1], &other, &[&own, &other]);
    for (client, server, agree) in [
        (&strict, &strict, true),
        (&stranger, &stranger, true),
        (&strict, &stranger, false),
        (&stranger, &strict, false),
    ] {
        let (one, two) = tokio::io::duplex(1 << 14);
        let name = ServerName::try_from("any.name").expect("a name");
        let connects = TlsConnector::from(client.client.clone()).connect(name, one);
        let accepts = TlsAcceptor::from(server.server.clone()).accept(two);
        let (connected, accepted) = tokio::join!(connects, accepts);
        assert_eq!(connected.is_ok() && accepted.is_ok(), agree);
    }
}
