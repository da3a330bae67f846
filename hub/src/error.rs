//! Errors of loading a model.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::name::{BadRevision, Name, Revision};

mod kinds;
mod words;

use words::{
    by_path, colon, folder, forbidden, gib, instead, limits, login, more_time, private, said, wait,
};

/// An error of the hub, with its remedy.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A revision that can't exist.
    #[error(transparent)]
    Revision(#[from] BadRevision),
    /// A revision for a path that is no model of the hub.
    #[error(
        "{option} says which version of a model of the hub, and {} is none. Leave the option \
             out, or give the model's name.",
        folder(path)
    )]
    RevisionOfFolder {
        /// The option.
        option: &'static str,
        /// The folder.
        path: PathBuf,
    },
    /// A path that leads nowhere, and names no model of the hub.
    #[error("{option} {}: {why}", path.display())]
    NoFolder {
        /// The option.
        option: &'static str,
        /// The path.
        path: PathBuf,
        /// The missing folder, and the assumption about the path.
        why: String,
    },
    /// A folder that can't be read, or that has more than one model.
    #[error("{option} {}: {source}", path.display())]
    Folder {
        /// The option.
        option: &'static str,
        /// The folder.
        path: PathBuf,
        /// The reason and the remedy.
        source: io::Error,
    },
    /// A name that may have been meant as a path, while the hub could not say whether it is
    /// a model.
    #[error("{failure} If a folder is meant: there is none at {name}; check the path.")]
    OrFolder {
        /// The path, or the model.
        name: Name,
        /// The reason why the hub could not say.
        failure: Box<Self>,
    },
    /// A token with characters that fit in no request.
    #[error(
        "the token of {0} has characters that no token has. Copy it again from \
             https://huggingface.co/settings/tokens."
    )]
    Token(String),
    /// A value of `HF_ENDPOINT` that is no address.
    #[error("HF_ENDPOINT is {0:?}, not an address such as https://huggingface.co.")]
    Endpoint(String),
    /// An address with a name or a password in it, which must not be shown.
    #[error(
        "HF_ENDPOINT has a name or a password in it, which is not sent. Give the address alone, \
             and who asks with HF_TOKEN."
    )]
    EndpointLogin,
    /// Authorities that are named and can't be read: others would be trusted in their place.
    #[error("{variable}={value}: {why}. Name what is there, in PEM, or unset it.")]
    Roots {
        /// The variable.
        variable: &'static str,
        /// The variable's value.
        value: String,
        /// The error of the file or folder.
        why: String,
    },
    /// A value of `HF_HUB_DOWNLOAD_TIMEOUT` that is no time.
    #[error("HF_HUB_DOWNLOAD_TIMEOUT is {0:?}. Give a number of seconds, such as 30.")]
    Timeout(String),
    /// A variable with a value that is no address of a proxy.
    #[error("{0} is no address of a proxy. Give one such as http://HOST:PORT, or unset it.")]
    Proxy(String),
    /// A model with conditions that were not accepted.
    #[error("{name} is gated: {}. Accept its conditions at {endpoint}/{name}{}", said(reason),
            login(*with_token))]
    Gated {
        /// The model.
        name: Name,
        /// The hub.
        endpoint: String,
        /// The hub's reason.
        reason: String,
        /// True if a token was shown.
        with_token: bool,
    },
    /// A refusal that mentions no conditions.
    #[error("{endpoint} forbids {what} (403){}. {}", colon(reason), forbidden(*with_token))]
    Forbidden {
        /// The hub.
        endpoint: String,
        /// The model or file that was asked for.
        what: String,
        /// The hub's reason.
        reason: String,
        /// True if a token was shown.
        with_token: bool,
    },
    /// A token that the hub does not know.
    #[error(
        "{endpoint} refuses the token of HF_TOKEN or of the token file for {name}. Make a new \
             one at {endpoint}/settings/tokens."
    )]
    TokenRefused {
        /// The model.
        name: Name,
        /// The hub.
        endpoint: String,
    },
    /// No such model that this user may see.
    #[error("{name} is no folder here and no model at {endpoint}. Look for its name there{}",
            private(*with_token))]
    Missing {
        /// The model.
        name: Name,
        /// The hub.
        endpoint: String,
        /// True if a token was shown.
        with_token: bool,
    },
    /// A version that the hub's model does not have.
    #[error(
        "{name} has no revision {revision}. Give a branch, tag or commit that \
             {endpoint}/{name}/tree/main lists, or leave --revision out."
    )]
    MissingRevision {
        /// The model.
        name: Name,
        /// The revision that was asked for.
        revision: Revision,
        /// The hub.
        endpoint: String,
    },
    /// Too many requests, for longer than is waited.
    #[error("{endpoint} answers too many requests from here (429){}. {}", wait(*after),
            limits(*with_token))]
    RateLimited {
        /// The hub.
        endpoint: String,
        /// Pause that the hub asked for, if it did.
        after: Option<Duration>,
        /// True if a token was shown.
        with_token: bool,
    },
    /// A model that is not in the cache, while loading is forbidden.
    #[error("{name} at revision {revision} is not complete in {}: it lacks {lacks}; and \
             {variable} forbids to load it. Run `lockstep pull {name}` where that is not set.",
            cache.display())]
    Offline {
        /// The model.
        name: Name,
        /// The version.
        revision: Revision,
        /// The cache.
        cache: PathBuf,
        /// Files that are not there.
        lacks: String,
        /// The variable that forbids loading.
        variable: &'static str,
    },
    /// The hub does not answer, or stops in the middle, again and again.
    #[error(
        "{endpoint} can't be reached for {what}: {why}. Check the network, HTTPS_PROXY, \
             SSL_CERT_FILE and HF_ENDPOINT, or give a slow one more time with \
             HF_HUB_DOWNLOAD_TIMEOUT, then start again: what has come is kept."
    )]
    Unreachable {
        /// The hub.
        endpoint: String,
        /// The model or file.
        what: String,
        /// The last of several failures.
        why: String,
    },
    /// The hub answers, but too slowly.
    #[error("{endpoint} did not bring {what} of {name} within {} s{}. Check the network, \
             HTTPS_PROXY and HF_ENDPOINT, then {}.", limit.as_secs(),
            set_by.map(|option| format!(" ({option})")).unwrap_or_default(),
            more_time(name, *set_by))]
    Slow {
        /// The model.
        name: Name,
        /// The hub.
        endpoint: String,
        /// The file or list that was waited for.
        what: String,
        /// The time limit.
        limit: Duration,
        /// The option that sets the limit, if one does.
        set_by: Option<&'static str>,
    },
    /// Another program holds a file's lock and loads nothing of the file.
    #[error(
        "another program has held {} for {} s, in which nothing of {file} came. End that program, \
             or remove the lock if there is none, then start again.",
        lock.display(), limit.as_secs()
    )]
    Locked {
        /// The lock.
        lock: PathBuf,
        /// The file that is wanted.
        file: String,
        /// Time for which the lock was held.
        limit: Duration,
    },
    /// An answer that is none of the above.
    #[error(
        "{endpoint} answers {status} for {what}{}. If that lasts, look at its status page, or \
             set HF_ENDPOINT to another hub.",
        colon(reason)
    )]
    Status {
        /// The hub.
        endpoint: String,
        /// The code.
        status: u16,
        /// The model or file.
        what: String,
        /// The hub's reason.
        reason: String,
    },
    /// An answer that can't be understood or can't be true.
    #[error(
        "{endpoint} says of {what} what can't be: {why}. Check HF_ENDPOINT and proxies on the \
             way."
    )]
    Answer {
        /// The hub.
        endpoint: String,
        /// The model or file.
        what: String,
        /// The contradiction in the answer.
        why: String,
    },
    /// Weights in other formats.
    #[error(
        "{name} holds no model.safetensors{}. Choose a repository with safetensors, mostly \
             the one that this was converted from{}.",
        instead(found),
        by_path(found)
    )]
    NoSafetensors {
        /// The model.
        name: Name,
        /// The model's files of weights.
        found: Vec<String>,
    },
    /// A model without a file that serving needs.
    #[error(
        "{name} has no {file}. Choose a repository that transformers loads with its fast \
             tokenizer."
    )]
    Lacks {
        /// The model.
        name: Name,
        /// The file.
        file: &'static str,
    },
    /// A small file that is too large to be read.
    #[error(
        "{file} of {name} has {size} bytes, and no more than {most} are read of it: it was not \
             loaded. Choose another repository or --revision, or look at HF_ENDPOINT."
    )]
    TooLarge {
        /// The model.
        name: Name,
        /// The file.
        file: String,
        /// Bytes of the file.
        size: u64,
        /// The most bytes that are read.
        most: u64,
    },
    /// A model that can't be served, according to its `config.json`.
    #[error("{name} can't be served, and its weights were not loaded: {why}")]
    Unsupported {
        /// The model.
        name: Name,
        /// The reason why it can't be served.
        why: String,
    },
    /// Content that differs from the hub's hash or size.
    #[error(
        "{file} of {name} came damaged twice: {why}. Check proxies on the way, or set \
             HF_ENDPOINT to another hub."
    )]
    Damaged {
        /// The model.
        name: Name,
        /// The file.
        file: String,
        /// The difference.
        why: String,
    },
    /// A disk that is too small.
    #[error("{name} needs {:.2} GiB more, and {} has {:.2} GiB free. Free some (`lockstep models` \
             lists what is there), or name a folder on a larger disk with HF_HUB_CACHE.",
            gib(*needed), cache.display(), gib(*free))]
    Space {
        /// The model.
        name: Name,
        /// Bytes to load.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The cache.
        cache: PathBuf,
    },
    /// A disk, or a share of it, that filled up while loading.
    #[error(
        "{}: {source}. Free some space (`lockstep models` lists what is there), or name a folder on \
             a larger disk with HF_HUB_CACHE, then start again: what has come is kept.",
        path.display()
    )]
    Full {
        /// The file that was written.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The cache can't be read or written.
    #[error("{}: {source}. Name a folder that can be written with HF_HUB_CACHE or HF_HOME.",
            path.display())]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file in the cache that no server may read.
    #[error(
        "{}: {why}. Move {} away, or name another folder with HF_HUB_CACHE, then start again.",
        path.display(), repository.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The model's part of the cache.
        repository: PathBuf,
        /// The reason why it is not read.
        why: String,
    },
    /// Somebody asked the program to end.
    #[error("stopped by {0} while a model was loaded. What has come is kept: start again.")]
    Stopped(&'static str),
    /// The system gives no thread or socket for loading.
    #[error("loading can't begin: {0}")]
    System(#[from] io::Error),
}

#[cfg(test)]
mod tests;
