//! Settings of the hub from the environment, under the names that all its programs share.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;

use crate::HubError;

/// Settings of a hub and its cache.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of all repositories: `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    pub cache: PathBuf,
    /// The hub's address, without a slash at its end: `HF_ENDPOINT`.
    pub endpoint: String,
    /// The user's token: `HF_TOKEN`, or the token file.
    pub token: Option<Token>,
    /// The variable that forbids requests to the hub, if one is set.
    pub offline: Option<&'static str>,
    /// Limits of waiting and retrying.
    pub limits: TransferLimits,
}

/// A secret token, which no text shows.
#[derive(Clone)]
pub struct Token(HeaderValue);

/// Limits of times and tries.
#[derive(Debug, Clone, Copy)]
pub struct TransferLimits {
    /// The longest wait for an address to answer, or for the next bytes.
    pub stall: Duration,
    /// Tries in a row without progress.
    pub attempts: u32,
    /// Pause after the first failed try; each further pause is twice as long.
    pub pause: Duration,
    /// The longest pause that the hub may ask for.
    pub longest_pause: Duration,
    /// Length of a window of time. After each, a body has to have brought [`Self::least`]
    /// bytes; an answer's head has to come within one.
    pub window: Duration,
    /// Fewest bytes in a window. A try that brings fewer counts as one without progress.
    pub least: u64,
    /// The longest time for the description of a model: its list of files and the small
    /// files.
    pub described: Duration,
    /// The option that sets [`Self::described`], if one does.
    pub set_by: Option<&'static str>,
    /// Time after which a waiting user gets the first word. Each further word comes twice as
    /// late.
    pub word: Duration,
    /// The longest wait for another program that loads a file and makes no progress.
    pub lock: Duration,
}

impl Default for TransferLimits {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(30),
            attempts: 6,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(330),
            window: Duration::from_secs(60),
            least: 256 << 10,
            described: Duration::from_secs(600),
            set_by: None,
            word: Duration::from_secs(5),
            lock: Duration::from_secs(600),
        }
    }
}

impl TransferLimits {
    /// Sets the longest wait for the next bytes, and extends limits that include such waits.
    fn set_stall(&mut self, stall: Duration) {
        self.stall = stall;
        self.window = self.window.max(stall);
        self.described = self.described.max(stall);
    }

    /// Limits for an answer that the cache can do without.
    pub(crate) fn brief(self) -> Self {
        let described = self.described.min(Duration::from_secs(30));
        Self {
            stall: self.stall.min(Duration::from_secs(10)),
            attempts: self.attempts.min(2),
            longest_pause: self.longest_pause.min(Duration::from_secs(5)),
            described,
            set_by: self.set_by.filter(|_| described == self.described),
            ..self
        }
    }

    /// Limits for a start of at most `limit`, set by `option`. The limit is for all loading
    /// that does not grow with the weights. Another limit bounds the time for which an
    /// answer may stand still; only that one holds for weights.
    fn within(self, limit: Duration, option: &'static str) -> Self {
        Self {
            longest_pause: self.longest_pause.min(limit),
            lock: self.lock.min(limit),
            described: limit,
            set_by: Some(option),
            ..self
        }
    }
}

impl Settings {
    /// Reads the settings of the environment.
    ///
    /// # Errors
    /// For a token or an address that is invalid.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// The settings for a start that `--startup-timeout` bounds.
    pub(crate) fn within(mut self, startup: Duration) -> Self {
        self.limits = self.limits.within(startup, "--startup-timeout");
        self
    }

    fn from(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let user = get("HOME").or_else(|| env::home_dir()?.into_os_string().into_string().ok());
        let user = user.unwrap_or_default();
        let path = |name: &str| get(name).map(|path| expanded(&with_variables(&path, get), &user));
        let home = path("HF_HOME").unwrap_or_else(|| {
            let caches = path("XDG_CACHE_HOME").unwrap_or_else(|| Path::new(&user).join(".cache"));
            caches.join("huggingface")
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        check_endpoint(&endpoint)?;
        check_proxies(get)?;
        // The first variable that is set decides.
        let mut switches = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter();
        let offline = switches.find_map(|name| Some((name, get(name)?)));
        let offline = offline.and_then(|(name, value)| is_true(&value).then_some(name));
        if offline.is_none() {
            check_roots(get)?;
        }
        let mut limits = TransferLimits::default();
        if let Some(text) = get("HF_HUB_DOWNLOAD_TIMEOUT") {
            match text.trim().parse() {
                Ok(seconds) if seconds > 0 => limits.set_stall(Duration::from_secs(seconds)),
                _ => return Err(HubError::Timeout(text)),
            }
        }
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        Ok(Self {
            cache: cache.unwrap_or_else(|| home.join("hub")),
            token: token(get, &token_file)?,
            offline,
            endpoint,
            limits,
        })
    }
}

impl Token {
    /// A token that was read from `from`.
    ///
    /// # Errors
    /// Fails when the token fits in no request.
    pub fn new(text: &str, from: &str) -> Result<Self, HubError> {
        let value = HeaderValue::from_str(&format!("Bearer {text}"));
        let mut value = value.map_err(|_| HubError::Token(from.to_owned()))?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Value of the request header with the token.
    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The token of the variables, or of the file that `hf auth login` writes. None if the
/// environment forbids tokens that were not asked for.
fn token(get: &dyn Fn(&str) -> Option<String>, file: &Path) -> Result<Option<Token>, HubError> {
    if get("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) {
        return Ok(None);
    }
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        let text = get(name).map(|text| text.trim().to_owned());
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            return Token::new(&text, name).map(Some);
        }
    }
    let text = fs::read_to_string(file).unwrap_or_default();
    match text.trim() {
        "" => Ok(None),
        text => Token::new(text, &file.display().to_string()).map(Some),
    }
}

/// Reads a switch as huggingface_hub does.
fn is_true(value: &str) -> bool {
    let value = value.to_ascii_uppercase();
    matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE")
}

/// Expands `~` to the user's own folder.
fn expanded(path: &str, user: &str) -> PathBuf {
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            Path::new(user).join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(path),
    }
}

/// Expands `$NAME` and `${NAME}` of variables that are set, as huggingface_hub does.
fn with_variables(path: &str, get: &dyn Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::new();
    let mut rest = path;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at..];
        let braced = rest
            .strip_prefix("${")
            .and_then(|name| name.split_once('}'));
        let (name, behind) = braced.unwrap_or_else(|| {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let name = &rest[1..];
            name.split_at(name.find(|c| !plain(c)).unwrap_or(name.len()))
        });
        match get(name).filter(|_| !name.is_empty()) {
            Some(value) => expanded.push_str(&value),
            None => expanded.push_str(&rest[..rest.len() - behind.len()]),
        }
        rest = behind;
    }
    expanded + rest
}

/// Checks that named authorities exist: the TLS library would go on with others.
fn check_roots(get: &dyn Fn(&str) -> Option<String>) -> Result<(), HubError> {
    let wrong = |variable, value: &str, why: String| HubError::Roots {
        variable,
        value: value.to_owned(),
        why,
    };
    const FILE: &str = "SSL_CERT_FILE";
    if let Some(file) = get(FILE) {
        let bytes = fs::read(&file).map_err(|error| wrong(FILE, &file, error.to_string()))?;
        let begin = b"-----BEGIN ";
        if !bytes.windows(begin.len()).any(|window| window == begin) {
            return Err(wrong(FILE, &file, "there is no certificate in it".into()));
        }
    }
    const FOLDERS: &str = "SSL_CERT_DIR";
    if let Some(folders) = get(FOLDERS) {
        let is_there = env::split_paths(&folders).any(|folder| folder.is_dir());
        if !is_there {
            return Err(wrong(FOLDERS, &folders, "there is no such folder".into()));
        }
    }
    Ok(())
}

fn check_endpoint(endpoint: &str) -> Result<(), HubError> {
    let beyond = endpoint
        .split_once("://")
        .map_or(endpoint, |(_, rest)| rest);
    if beyond
        .split('/')
        .next()
        .is_some_and(|host| host.contains('@'))
    {
        return Err(HubError::EndpointLogin);
    }
    let uri: Option<Uri> = endpoint.parse().ok();
    let known = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some()
            && uri.query().is_none()
    });
    match known {
        true => Ok(()),
        false => Err(HubError::Endpoint(endpoint.to_owned())),
    }
}

/// Checks proxies: a proxy that can't be understood would be bypassed.
fn check_proxies(get: &dyn Fn(&str) -> Option<String>) -> Result<(), HubError> {
    let anywhere = Uri::from_static("https://hub.test");
    for name in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"] {
        for name in [name.to_owned(), name.to_ascii_lowercase()] {
            let proxy = get(&name).map(|value| Matcher::builder().all(value).build());
            if proxy.is_some_and(|proxy| proxy.intercept(&anywhere).is_none()) {
                return Err(HubError::Proxy(name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
