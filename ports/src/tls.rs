//! TLS of ports. The files may be exchanged while the ports serve.

mod nodes;
mod plain;
mod validity;

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockstep_types::TlsFiles;
use rustix::fs::{Mode, OFlags};
use rustls::{
    InconsistentKeys, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::{
    net::TcpStream,
    time::{MissedTickBehavior, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

pub use nodes::NodeTls;
use validity::{Validity, ValidityWarning};

/// Interval at which the files are checked.
const LOOK: Duration = Duration::from_secs(2);
/// Time after which a slow check is logged.
const SLOW: Duration = Duration::from_secs(10);
/// Maximum bytes of a file; chains of certificates have some thousands.
const MOST_BYTES: u64 = 1 << 20;
/// Names of the protocols inside TLS (RFC 7301).
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// Bytes of an answer that may wait to be encrypted and sent.
const SEND_BUFFER: usize = 16 << 10;

/// The certificate that ports show, and the certificates that they require.
pub struct Tls {
    files: TlsFiles,
    state: Mutex<State>,
}

struct State {
    config: Arc<ServerConfig>,
    /// Contents of the files when `config` was made.
    seen: Contents,
    /// Error of the last check, if any.
    wrong: Option<String>,
    /// Period in which the certificate is valid.
    validity: Option<Validity>,
    /// The last warning about the period.
    said: Option<ValidityWarning>,
}

/// Problem with a file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub message: String,
}

impl TlsError {
    fn new(path: &Path, message: &impl ToString) -> Self {
        Self {
            path: path.to_owned(),
            message: message.to_string(),
        }
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] if a file cannot be read or holds something else, or if the key
    /// does not belong to the certificate.
    pub fn load(files: &TlsFiles) -> Result<Arc<Self>, TlsError> {
        let seen = Contents::read(files)?;
        let config = seen.config(files)?;
        let validity = seen.validity(files)?;
        Ok(Arc::new(Self {
            files: files.clone(),
            state: Mutex::new(State {
                config,
                seen,
                wrong: None,
                validity,
                // The code that starts the server reports it: see `warning`.
                said: validity.and_then(|validity| validity.at(UnixTime::now())),
            }),
        }))
    }

    /// Returns a warning about the certificate's period: it has expired, expires soon,
    /// or is not valid yet. Clients without checks accept even an expired certificate.
    pub fn warning(&self) -> Option<String> {
        self.state().said.map(|untimely| untimely.to_string())
    }

    /// Reads the files of nodes, which require certificates of each other.
    ///
    /// # Errors
    /// The errors of [`Self::load`], and an error if no roots are named.
    pub fn of_nodes(files: &TlsFiles) -> Result<Arc<Self>, TlsError> {
        nodes::roots_of(files)?;
        Self::load(files)
    }

    /// Performs the TLS handshake with a client.
    pub(crate) async fn greet(&self, stream: TcpStream) -> io::Result<Box<TlsStream<TcpStream>>> {
        let stream = plain::refused(stream).await?;
        let acceptor = TlsAcceptor::from(self.state().config.clone());
        let mut stream = acceptor.accept(stream).await?;
        let (_, session) = stream.get_mut();
        session.set_buffer_limit(Some(SEND_BUFFER));
        Ok(Box::new(stream))
    }

    /// Checks the files every few seconds, without end. New connections use the new
    /// contents. A problem is logged and changes nothing.
    pub(crate) async fn watch(self: &Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let own = self.clone();
            let mut look = tokio::task::spawn_blocking(move || own.look());
            // If the file system does not answer, only that thread waits.
            let looked = match timeout(SLOW, &mut look).await {
                Ok(looked) => looked,
                Err(_) => {
                    tracing::warn!(
                        "{} can't be read for {} s; connections get the certificate from before \
                         until it can",
                        self.files.certificate.display(),
                        SLOW.as_secs()
                    );
                    look.await
                }
            };
            match looked {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => tracing::info!("new connections get the certificate of now"),
                Ok(Err(error)) => tracing::warn!(
                    "{error}; connections get the certificate from before until this is mended"
                ),
                Err(error) => tracing::error!(%error, "looking at certificates"),
            }
            if let Some(untimely) = self.aged(UnixTime::now()) {
                tracing::warn!("{}: {untimely}", self.files.certificate.display());
            }
        }
    }

    /// Returns a new warning about the certificate's period, once for each kind.
    fn aged(&self, now: UnixTime) -> Option<ValidityWarning> {
        let mut state = self.state();
        let before = state.said;
        state.said = state.validity.and_then(|validity| validity.at(now));
        let kind = |said: Option<ValidityWarning>| said.map(|said| std::mem::discriminant(&said));
        state.said.filter(|_| kind(state.said) != kind(before))
    }

    /// Loads the files if they have changed; returns true if they were loaded. The same
    /// problem is returned as an error only once.
    fn look(&self) -> Result<bool, TlsError> {
        self.take_in(Contents::read)
    }

    /// Loads changed files. No handshake waits while `read` runs.
    fn take_in(
        &self,
        read: impl FnOnce(&TlsFiles) -> Result<Contents, TlsError>,
    ) -> Result<bool, TlsError> {
        let changed = read(&self.files).and_then(|seen| match seen == self.state().seen {
            true => Ok(None),
            false => Ok(Some((
                seen.config(&self.files)?,
                seen.validity(&self.files)?,
                seen,
            ))),
        });
        let mut state = self.state();
        match changed {
            Ok(now) => {
                state.wrong = None;
                let is_new = now.is_some();
                if let Some((config, validity, seen)) = now {
                    (state.config, state.seen) = (config, seen);
                    (state.validity, state.said) = (validity, None);
                }
                Ok(is_new)
            }
            Err(error) => {
                let wrong = Some(error.to_string());
                let is_known = wrong == state.wrong;
                state.wrong = wrong;
                if is_known { Ok(false) } else { Err(error) }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves out the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Contents of the files.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    roots: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let roots = files.client_roots.as_deref();
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            roots: roots.map(read).transpose()?,
        })
    }

    /// Returns the certificate with its chain, and its key.
    fn pair(&self, files: &TlsFiles) -> Result<Pair, TlsError> {
        let chain = certificates(&files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| {
            let hint = "this is no private key in PEM that needs no password; `openssl pkey -in \
                        FILE` writes one";
            TlsError::new(&files.key, &format!("{hint} ({error})"))
        })?;
        Ok((chain, key))
    }

    /// Returns the period in which the server's own certificate is valid. The
    /// certificates above it do not count, since they may be one of several ways to a
    /// root.
    fn validity(&self, files: &TlsFiles) -> Result<Option<Validity>, TlsError> {
        let chain = certificates(&files.certificate, &self.certificate)?;
        Ok(chain.first().and_then(Validity::of))
    }

    fn config(&self, files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let (chain, key) = self.pair(files)?;
        let verifier = match (&files.client_roots, &self.roots) {
            (Some(path), Some(roots)) => verifier(path, roots, &provider)?,
            _ => WebPkiClientVerifier::no_client_auth(),
        };
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(&files.certificate, &error))?;
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| {
                let key = files.key.display();
                let why = match &error {
                    rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                        format!("the key {key} is another certificate's; give the two that belong together")
                    }
                    rustls::Error::InvalidCertificate(_) => format!(
                        "this is no certificate of a server that can be read: {error}; make one \
                         of version 3, with names"
                    ),
                    _ => format!("with the key {key}: {error}"),
                };
                TlsError::new(&files.certificate, &why)
            })?;
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Ok(Arc::new(config))
    }
}

/// Returns a verifier of client certificates that accepts those signed by one of the
/// roots.
fn verifier(
    path: &Path,
    pem: &[u8],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let (roots, provider) = (Arc::new(roots(path, pem)?), provider.clone());
    WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| TlsError::new(path, &error))
}

fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(path, pem)? {
        roots
            .add(root)
            .map_err(|error| TlsError::new(path, &error))?;
    }
    Ok(roots)
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| {
        let why = "a certificate in it is no good PEM, perhaps cut off";
        TlsError::new(path, &format!("{why} ({error}); copy the file anew"))
    })?;
    match all.is_empty() {
        true => {
            let why = "there is no certificate in PEM in it; give the file that has \
                       -----BEGIN CERTIFICATE-----";
            Err(TlsError::new(path, &why))
        }
        false => Ok(all),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let wrong = |error: io::Error| TlsError::new(path, &error);
    // Other kinds of files might never open, or never end.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(file.map_err(|error| wrong(error.into()))?);
    if !file.metadata().map_err(wrong)?.is_file() {
        return Err(TlsError::new(path, &"it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(wrong)?;
    match bytes.len() as u64 <= MOST_BYTES {
        true => Ok(bytes),
        false => Err(TlsError::new(path, &"it has more than 1 MiB")),
    }
}

#[cfg(test)]
mod tests;
