//! TLS between nodes, which tell each other by the roots of their certificates.

use std::sync::Arc;

use lockstep_types::TlsFiles;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{self, WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

use super::{Contents, HTTP2, TlsError, roots};

/// What the processes of a node show others, and ask of them: a certificate that one
/// of the group's own roots has signed. Nodes come and go by address, so that names in
/// certificates say nothing.
#[derive(Debug, Clone)]
pub struct NodeTls {
    /// Of who connects.
    pub client: Arc<ClientConfig>,
    /// Of who accepts.
    pub server: Arc<ServerConfig>,
}

impl NodeTls {
    /// Reads the files, all three.
    ///
    /// # Errors
    /// [`TlsError`]: one can't be read, holds something else, or the key is not the
    /// certificate's.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let contents = Contents::read(files)?;
        let server = contents.config(files)?;
        let provider = Arc::new(ring::default_provider());
        let verifier = OfRoots {
            roots: match (&files.client_roots, &contents.roots) {
                (Some(path), Some(pem)) => roots(path, pem)?,
                _ => RootCertStore::empty(),
            },
            algorithms: provider.signature_verification_algorithms,
        };
        let (chain, key) = contents.pair(files)?;
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
        })
    }
}

/// Takes a certificate that one of the roots has signed, whatever its name.
#[derive(Debug)]
struct OfRoots {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for OfRoots {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            others,
            now,
            algorithms,
        )?;
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
