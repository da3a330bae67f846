//! Why a model did not come.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::name::{BadRevision, Name, Revision};

mod kinds;
mod words;

use words::{
    colon, folder, forbidden, gib, instead, limits, login, more_time, private, said, wait,
};

/// What was wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A revision that could be none.
    #[error(transparent)]
    Revision(#[from] BadRevision),
    /// A revision of what is no model of the hub.
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
        /// What is not there, and what was assumed.
        why: String,
    },
    /// What may have been meant as a path, where the hub could not say whether it is a model.
    #[error("{failure} If a folder is meant: there is none at {name}; check the path.")]
    OrFolder {
        /// The path, or the model.
        name: Name,
        /// Why the hub could not say.
        failure: Box<Self>,
    },
    /// A token that fits into no request.
    #[error(
        "the token of {0} has characters that no token has. Copy it again from \
             https://huggingface.co/settings/tokens."
    )]
    Token(String),
    /// An address that is none.
    #[error("HF_ENDPOINT is {0:?}, not an address such as https://huggingface.co.")]
    Endpoint(String),
    /// An address with a name or a password in it, which nothing may show.
    #[error(
        "HF_ENDPOINT has a name or a password in it, which is not sent. Give the address alone, \
             and who asks with HF_TOKEN."
    )]
    EndpointLogin,
    /// Authorities that are named and can't be read: others would be believed in their place.
    #[error("{variable}={value}: {why}. Name what is there, in PEM, or unset it.")]
    Roots {
        /// The variable.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What is wrong.
        why: String,
    },
    /// A time that is none.
    #[error("HF_HUB_DOWNLOAD_TIMEOUT is {0:?}. Give a number of seconds, such as 30.")]
    Timeout(String),
    /// A proxy that is none.
    #[error("{0} is no address of a proxy. Give one such as http://HOST:PORT, or unset it.")]
    Proxy(String),
    /// Conditions that were not accepted.
    #[error("{name} is gated: {}. Accept its conditions at {endpoint}/{name}{}", said(reason),
            login(*with_token))]
    Gated {
        /// The model.
        name: Name,
        /// The hub.
        endpoint: String,
        /// What the hub said.
        reason: String,
        /// Whether a token was shown.
        with_token: bool,
    },
    /// Refused without a word of conditions.
    #[error("{endpoint} forbids {what} (403){}. {}", colon(reason), forbidden(*with_token))]
    Forbidden {
        /// The hub.
        endpoint: String,
        /// What was asked for.
        what: String,
        /// What the hub said.
        reason: String,
        /// Whether a token was shown.
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
    /// No such model, for whoever asks.
    #[error("{name} is no folder here and no model at {endpoint}. Look for its name there{}",
            private(*with_token))]
    Missing {
        /// The model.
        name: Name,
        /// The hub.
        endpoint: String,
        /// Whether a token was shown.
        with_token: bool,
    },
    /// The model, but not this version.
    #[error(
        "{name} has no revision {revision}. Give a branch, tag or commit that \
             {endpoint}/{name}/tree/main lists, or leave --revision out."
    )]
    MissingRevision {
        /// The model.
        name: Name,
        /// What was asked for.
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
        /// When to come back, if it said so.
        after: Option<Duration>,
        /// Whether a token was shown.
        with_token: bool,
    },
    /// Not in the cache, and nothing may be loaded.
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
        /// What is not there.
        lacks: String,
        /// What forbids.
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
    /// The hub answers, and too slowly.
    #[error("{endpoint} did not bring {what} of {name} within {} s{}. Check the network, \
             HTTPS_PROXY and HF_ENDPOINT, then {}.", limit.as_secs(),
            set_by.map(|option| format!(" ({option})")).unwrap_or_default(),
            more_time(name, *set_by))]
    Slow {
        /// The model.
        name: Name,
        /// The hub.
        endpoint: String,
        /// What was waited for.
        what: String,
        /// For how long.
        limit: Duration,
        /// The option that sets that, if one does.
        set_by: Option<&'static str>,
    },
    /// Another program that holds a file's lock and loads nothing of it.
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
        /// For how long.
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
        /// What the hub said.
        reason: String,
    },
    /// An answer that can't be understood or believed.
    #[error(
        "{endpoint} says of {what} what can't be: {why}. Check HF_ENDPOINT and proxies on the \
             way."
    )]
    Answer {
        /// The hub.
        endpoint: String,
        /// The model or file.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// Weights in other formats.
    #[error(
        "{name} holds no model.safetensors{}. Choose a repository with safetensors, mostly \
             the one that this was converted from.",
        instead(found)
    )]
    NoSafetensors {
        /// The model.
        name: Name,
        /// Files of weights that it has.
        found: Vec<String>,
    },
    /// A file without which nothing is served.
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
    /// A small file that would not be read for its size.
    #[error(
        "{file} of {name} has {size} bytes, and no more than {most} are read of it: it was not \
             loaded. Choose another repository or --revision, or look at HF_ENDPOINT."
    )]
    TooLarge {
        /// The model.
        name: Name,
        /// The file.
        file: String,
        /// Its bytes.
        size: u64,
        /// The most that it may have.
        most: u64,
    },
    /// A model that is not served, told by its `config.json`.
    #[error("{name} can't be served, and its weights were not loaded: {why}")]
    Unsupported {
        /// The model.
        name: Name,
        /// What is not served.
        why: String,
    },
    /// What came is not what the hub has.
    #[error(
        "{file} of {name} came damaged twice: {why}. Check proxies on the way, or set \
             HF_ENDPOINT to another hub."
    )]
    Damaged {
        /// The model.
        name: Name,
        /// The file.
        file: String,
        /// What differs.
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
    /// A disk, or a share of it, that filled up meanwhile.
    #[error(
        "{}: {source}. Free some space (`lockstep models` lists what is there), or name a folder on \
             a larger disk with HF_HUB_CACHE, then start again: what has come is kept.",
        path.display()
    )]
    Full {
        /// The file that was written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The cache can't be read or written.
    #[error("{}: {source}. Name a folder that can be written with HF_HUB_CACHE or HF_HOME.",
            path.display())]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the cache that no server reads, wherever it came from.
    #[error(
        "{}: {why}. Move {} away, or name another folder with HF_HUB_CACHE, then start again.",
        path.display(), repository.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The model's part of the cache.
        repository: PathBuf,
        /// Why it is not read.
        why: String,
    },
    /// Somebody asked the program to end.
    #[error("stopped by {0} while a model was loaded. What has come is kept: start again.")]
    Stopped(&'static str),
    /// No thread or socket to load with.
    #[error("loading can't begin: {0}")]
    System(#[from] io::Error),
}

#[cfg(test)]
mod tests;
