//! A hub on loopback, with the faults of real ones, and a list of the requests that it got.
//!
//! The hub answers a downloader's requests like huggingface.co: with the list of a model's
//! files with their hashes, and with the files, large ones by a redirect to another port.

#![forbid(unsafe_code)]

mod faults;
mod models;
mod serve;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Runtime;

pub use faults::Fault;
pub use models::commit;

use faults::Faults;
use models::Models;

/// A hub that listens until it is dropped.
pub struct LoopbackHub {
    home: SocketAddr,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

/// A request that the hub got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The file, or the model's name for a list of its files.
    pub what: String,
    /// Number of the first byte that was asked for.
    pub from: u64,
    /// The token that the request showed.
    pub token: Option<String>,
    /// True if the request came to the port of large files, after a redirect.
    pub elsewhere: bool,
}

/// State that handlers share.
pub(crate) struct State {
    pub(crate) storage: SocketAddr,
    pub(crate) inner: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) models: Models,
    pub(crate) faults: Faults,
    pub(crate) seen: Vec<Seen>,
    /// The token that shows files; `None` if everybody may see them.
    pub(crate) token: Option<String>,
}

impl State {
    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoopbackHub {
    /// Starts a hub without models on two free ports.
    ///
    /// # Panics
    /// Panics when nothing can listen.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let bind = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            listener.set_nonblocking(true).expect("a setting");
            listener
        };
        let address = |listener: &TcpListener| listener.local_addr().expect("an address");
        let (home, storage) = (bind(), bind());
        let state = Arc::new(State {
            storage: address(&storage),
            inner: Mutex::default(),
        });
        let hub = address(&home);
        runtime.spawn(serve::run(home, state.clone(), false));
        runtime.spawn(serve::run(storage, state.clone(), true));
        Self {
            home: hub,
            state,
            runtime: Some(runtime),
        }
    }

    /// The hub's address, for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.home)
    }

    /// Gives the hub a model.
    pub fn add(&self, name: &str, files: &[(&str, &[u8])]) {
        self.state.inner().models.add(name, files);
    }

    /// Gives the hub the model of a folder.
    ///
    /// # Panics
    /// Panics when the folder can't be read.
    pub fn add_folder(&self, name: &str, folder: &Path) {
        let entries = std::fs::read_dir(folder).expect("a model's folder");
        let files: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.is_file())
            .map(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                (name.into_owned(), std::fs::read(&path).expect("a file"))
            })
            .collect();
        let files: Vec<_> = files
            .iter()
            .map(|(name, content)| (name.as_str(), content.as_slice()))
            .collect();
        self.add(name, &files);
    }

    /// Makes the next answer to a request for `what` faulty. A second call is for the
    /// request after that, and so on. `what` is a file, or the model's name for the list of
    /// its files.
    pub fn fault(&self, what: &str, fault: Fault) {
        self.state.inner().faults.add(what, fault);
    }

    /// Makes the hub say that a file has `size` bytes.
    pub fn claim_size(&self, file: &str, size: u64) {
        self.state.inner().models.claim(file, size);
    }

    /// Shows files only to requests that show this token.
    pub fn gate(&self, token: &str) {
        self.state.inner().token = Some(token.to_owned());
    }

    /// The requests that the hub got.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.inner().seen.clone()
    }

    /// The first bytes that requests for one file asked for.
    pub fn begins(&self, what: &str) -> Vec<u64> {
        let seen = self.seen();
        let of_file = seen.iter().filter(|seen| seen.what == what);
        let redirected = |seen: &&Seen| seen.elsewhere || !models::is_large(&seen.what);
        of_file.filter(redirected).map(|seen| seen.from).collect()
    }
}

impl Drop for LoopbackHub {
    /// Ends at once: answers that stand still don't delay it.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
