//! TLS between nodes, which recognise each other by the roots of their certificates.

use std::{path::Path, sync::Arc};

use lockstep_types::TlsFiles;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{self, WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{ParsedCertificate, danger::ClientCertVerifier},
};

use super::{Contents, HTTP2, TlsError, roots};

/// The certificate that a node's processes show others, and the certificates that they
/// require. These must be signed by one of the group's own roots. Names in certificates
/// do not count, since nodes come and go by address.
#[derive(Debug, Clone)]
pub struct NodeTls {
    /// Configuration of the connecting side.
    pub client: Arc<ClientConfig>,
    /// Configuration of the accepting side.
    pub server: Arc<ServerConfig>,
    /// Warning about the certificate's period: it expires soon.
    pub warning: Option<String>,
}

impl NodeTls {
    /// Reads the files, all three.
    ///
    /// # Errors
    /// [`TlsError`] if a file is not named, cannot be read or holds something else. The
    /// error also comes if the key does not belong to the certificate, if the
    /// certificate has expired or is not valid yet, or if the roots have not signed it
    /// for both sides.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let path = roots_of(files)?;
        let contents = Contents::read(files)?;
        let server = contents.config(files)?;
        let provider = Arc::new(ring::default_provider());
        let pem = contents.roots.as_deref().unwrap_or_default();
        let verifier = RootsVerifier {
            roots: roots(path, pem)?,
            algorithms: provider.signature_verification_algorithms,
        };
        let (chain, key) = contents.pair(files)?;
        let untimely = contents.validity(files)?;
        let untimely = untimely.and_then(|validity| validity.at(UnixTime::now()));
        if let Some(untimely) = untimely.filter(|untimely| untimely.is_refused()) {
            return Err(TlsError::new(&files.certificate, &untimely));
        }
        let clients = super::verifier(path, pem, &provider)?;
        would_take(&verifier, clients.as_ref(), &chain).map_err(|error| {
            let why = format!("other nodes would refuse it: {error}");
            TlsError::new(&files.certificate, &why)
        })?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(&files.certificate, &error))?;
        let mut client = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, key)
            .map_err(|error| TlsError::new(&files.certificate, &error))?;
        client.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Self {
            client: Arc::new(client),
            server,
            warning: untimely.map(|untimely| untimely.to_string()),
        })
    }
}

/// Returns the file of nodes' roots. Without roots any other node would be accepted.
pub(super) fn roots_of(files: &TlsFiles) -> Result<&Path, TlsError> {
    let roots = files.client_roots.as_deref();
    roots.ok_or_else(|| TlsError::new(&files.certificate, &"no roots of other nodes are named"))
}

/// Checks that a node with the same roots would accept this certificate, from a
/// connecting and from an accepting side.
fn would_take(
    servers: &RootsVerifier,
    clients: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let now = UnixTime::now();
    let Some((own, others)) = chain.split_first() else {
        return Err(Error::NoCertificatesPresented);
    };
    servers.verify(own, others, now)?;
    clients.verify_client_cert(own, others, now).map(|_| ())
}

/// Accepts a certificate that one of the roots has signed, whatever its name.
#[derive(Debug)]
struct RootsVerifier {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl RootsVerifier {
    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let (roots, algorithms) = (&self.roots, self.algorithms.all);
        verify_server_cert_signed_by_trust_anchor(&certificate, roots, others, now, algorithms)
    }
}

impl ServerCertVerifier for RootsVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(certificate, others, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
