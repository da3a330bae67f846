//! Certificates, and clients that use them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority that signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate as PEM text.
    pub certificate: String,
    /// The private key as PEM text.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("signed"))
    }
}

impl Authority {
    /// Returns its own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate of `localhost` and 127.0.0.1.
    ///
    /// # Panics
    /// Panics if no key can be made.
    pub fn sign(&self) -> Pair {
        self.sign_until(2100)
    }

    /// Signs a certificate that is valid until the start of `year`.
    ///
    /// # Panics
    /// Panics if no key can be made.
    pub fn sign_until(&self, year: i32) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        Pair {
            certificate: params.signed_by(&key, &self.0).expect("signed").pem(),
            key: key.serialize_pem(),
        }
    }

    /// Returns a client that trusts this authority, speaks `protocols` and shows a
    /// certificate, if any.
    ///
    /// # Panics
    /// Panics if `shows` is not a valid pair.
    pub fn client(&self, protocols: &[&str], shows: Option<&Pair>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match shows {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
                let chain = vec![chain.expect("a certificate")];
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        let name = |protocol: &&str| protocol.as_bytes().to_vec();
        config.alpn_protocols = protocols.iter().map(name).collect();
        Arc::new(config).into()
    }
}

impl Pair {
    /// Writes both files, the certificate first.
    ///
    /// # Panics
    /// Panics if they cannot be written.
    pub fn write(&self, certificate: &Path, key: &Path) {
        std::fs::write(certificate, &self.certificate).expect("written");
        std::fs::write(key, &self.key).expect("written");
    }
}

/// Connects to `port` of this machine.
///
/// # Errors
/// The system's error, or an error of TLS.
pub async fn connect(client: &TlsConnector, port: u16) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    client.connect(name, stream).await
}

/// Posts JSON over a connection of its own. Returns the complete answer with its head.
///
/// # Errors
/// The system's error, or an error of TLS.
pub async fn post(client: &TlsConnector, port: u16, path: &str, body: &str) -> io::Result<String> {
    let mut stream = connect(client, port).await?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
